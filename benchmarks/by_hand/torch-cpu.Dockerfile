# Written by hand, with care, for the packages of images/torch-cpu.toml: what the compiled image is measured against.
# As sklearn.Dockerfile; PyTorch comes from its own index, in a layer that other requirements do not touch.
ARG BASE=python:3.11-slim
FROM ${BASE} AS base
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN [ -x /opt/venv/bin/python ] || python3 -m venv /opt/venv

FROM base AS uv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    pip install --quiet --no-cache-dir --target /opt/uv uv==0.13.8

FROM base
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=torch.txt,target=/run/skyward/torch.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy /run/uv/bin/uv pip install \
        --compile-bytecode --no-deps --require-hashes --no-config \
        ${TORCH_FROM:---default-index https://download.pytorch.org/whl/cpu} -r /run/skyward/torch.txt
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements.txt,target=/run/skyward/requirements.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy /run/uv/bin/uv pip install \
        --compile-bytecode --no-deps --require-hashes -r /run/skyward/requirements.txt
