# images/tensorflow.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
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
# tensorflow-cpu
# tensorflow-cpu==2.21.0
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework/locked.txt,target=/run/skyward/locked.txt \
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
ENV TF_CPP_MIN_LOG_LEVEL="1"
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="7d725ef5c2e08a5817f05bd82a73c7677dca8af1c851e2464f3e10763ec06904" skyward.python="3.11"
