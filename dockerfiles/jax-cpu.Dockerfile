# images/jax-cpu.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
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

FROM python AS uv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=uv.txt,target=/run/skyward/uv.txt \
    set -e; . /run/skyward/step.sh; \
    python -m pip install --quiet --no-cache-dir --root-user-action=ignore --no-deps --only-binary :all: --require-hashes --target /opt/uv -r /run/skyward/uv.txt; \
    end_step

FROM python AS image
# jax
# jax==0.10.2
# jaxlib==0.10.2
# numpy
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=CHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/medium/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=CHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/light/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=CHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --require-hashes -r /run/skyward/locked.txt; \
    end_step
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
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="d5135ca357620ceb3188a00a036300d1207adb2d0ffb99e2740be12c900403cb" skyward.python="3.11"
