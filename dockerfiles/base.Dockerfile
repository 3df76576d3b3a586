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
    chmod -R a+rX /opt/skyward; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/group || echo 'skyward:x:10001:' >>/etc/group; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/passwd || echo 'skyward:x:10001:10001::/home/skyward:/bin/sh' >>/etc/passwd; \
    mkdir -p /home/skyward /work; \
    chmod 1777 /home/skyward /work; \
    [ "$PWD" = / ] || chmod a+rwx .; \
    touch -d @315532800 /etc; \
    end_step
ENV PYTHONPATH=/opt/skyward
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="860b946a244541112458d81cb07003600ec07654efff41a809f5090075168c99" skyward.python="3.11"
