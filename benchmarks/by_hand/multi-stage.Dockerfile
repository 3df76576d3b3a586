# Written by hand as uv's users do: packages are installed in a stage of their own, and the environment is copied.
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

FROM base AS packages
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements.txt,target=/run/skyward/requirements.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy /run/uv/bin/uv pip install \
        --compile-bytecode --no-deps --require-hashes -r /run/skyward/requirements.txt

FROM base
ARG APT
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    apt-get update -qq && apt-get install -y -qq --no-install-recommends ${APT} && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/venv /opt/venv
