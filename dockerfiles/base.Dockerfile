# images/base.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
# The digest in FROM is left out, and those in LABEL stand for what only a build knows.
# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    set -e; . /run/skyward/step.sh; \
    [ -x /opt/venv/bin/python ] || "$(command -v python3.11 || command -v python3 || echo python)" -m venv --system-site-packages /opt/venv; \
    /opt/venv/bin/python -c 'import sys; found = "%d.%d" % sys.version_info[:2]; sys.exit(found != "3.11" and "skyward: the base has Python " + found + ", wanted is 3.11")'; \
    end_step

FROM python AS image
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    set -e; . /run/skyward/step.sh; \
    cp -r /run/runner /opt/skyward; \
    /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash -x '/opt/skyward/skyward/(build|cli|engine|image|pool|providers)/' /opt/skyward; \
    end_step
ENV PYTHONPATH=/opt/skyward
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="799022b9be3cd3bace6d6906b527356dc381f04dd005c14bb17d91f86156961b" skyward.python="3.11"
