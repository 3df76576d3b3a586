# images/huggingface.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
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
# accelerate==1.15.0
# datasets==5.2.0
# numpy
# tokenizers
# torch==2.9.1
# transformers==5.23.0
# torch from https://download.pytorch.org/whl/cu128 only
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework/index-7612c3bf.txt,target=/run/skyward/index-7612c3bf.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    [ -n "${SKYWARD_INDEX_7612c3bf:-}" ] || SKYWARD_INDEX_7612c3bf=https://download.pytorch.org/whl/cu128; env -u UV_CONFIG_FILE /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/index-7612c3bf.txt --no-config --default-index "$SKYWARD_INDEX_7612c3bf"; \
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
    --mount=type=cache,id=skyward-apt-linux-amd64-cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=skyward-apt-linux-amd64-lib,target=/var/lib/apt,sharing=locked \
    set -e; . /run/skyward/step.sh; \
    echo '#clear DPkg::Post-Invoke; #clear APT::Update::Post-Invoke;' > /run/skyward/keep-archives; \
    apt-get -c /run/skyward/keep-archives update -qq; \
    DEBIAN_FRONTEND=noninteractive apt-get -c /run/skyward/keep-archives install -y -qq --no-install-recommends git; \
    rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old; \
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
ENV HF_HUB_DISABLE_TELEMETRY="1" \
    TOKENIZERS_PARALLELISM="false"
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="78cca695f94a9c2351d8ce4eedeb48e0c953d9890930af6e7d9185c6fd34f727" skyward.python="3.11"
