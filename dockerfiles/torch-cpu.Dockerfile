# images/torch-cpu.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
# The digest in FROM is left out, and those in LABEL stand for what only a build knows.
# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
ADD mount-points.tar /
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=python.sh,target=/run/skyward/python.sh \
    --mount=type=bind,source=make_venv.py,target=/run/skyward/make_venv.py \
    set -e; . /run/skyward/step.sh; \
    sh /run/skyward/python.sh; \
    end_step
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv

FROM python AS uv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=uv.sh,target=/run/skyward/uv.sh \
    --mount=type=bind,source=uv.txt,target=/run/skyward/uv.txt \
    set -e; . /run/skyward/step.sh; \
    sh /run/skyward/uv.sh; \
    end_step

FROM python AS image
# numpy
# torch==2.13.0
# torch from https://download.pytorch.org/whl/cpu only
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework/index-e7c18efb.txt,target=/run/skyward/index-e7c18efb.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    [ -n "${SKYWARD_INDEX_e7c18efb:-}" ] || SKYWARD_INDEX_e7c18efb=https://download.pytorch.org/whl/cpu; env -u UV_CONFIG_FILE /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/index-e7c18efb.txt --no-config --default-index "$SKYWARD_INDEX_e7c18efb"; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/medium/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/light/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    set -e; . /run/skyward/step.sh; \
    rm -rf /opt/skyward; \
    cp -r /run/runner /opt/skyward; \
    /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash -x '/opt/skyward/skyward/(build|cli|engine|image|pool|providers)/' /opt/skyward; \
    chmod -R a+rX /opt/skyward; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/group || echo 'skyward:x:10001:' >>/etc/group; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/passwd || echo 'skyward:x:10001:10001::/home/skyward:/bin/sh' >>/etc/passwd; \
    mkdir -p /home/skyward /work; \
    chmod 1777 /home/skyward /work; \
    [ "$PWD" = / ] || chmod a+rwx .; \
    above=$PWD; while [ "$above" ]; do find "$above" -maxdepth 0 ! -perm -001 -exec chmod a+x {} +; above=${above%/*}; done; \
    touch -d @315532800 /etc; \
    end_step
ENV PYTHONPATH="/opt/skyward${PYTHONPATH:+:$PYTHONPATH}"
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="fc96163e31f2cd03bdfa0ec5d800d093a8dcebc0924df9d6c7d229a27e8dfe21" skyward.python="3.11"
