# Written by hand without care: Debian packages, then one `pip install`.
ARG BASE=python:3.11-slim
FROM ${BASE}
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN [ -x /opt/venv/bin/python ] || python3 -m venv /opt/venv
ARG APT
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    apt-get update && apt-get install -y ${APT}
COPY requirements.txt /requirements.txt
RUN --mount=type=tmpfs,target=/run \
    --mount=type=secret,id=site,target=/run/skyward/site.sh \
    --mount=type=bind,source=wheels,target=/run/wheels \
    [ ! -r /run/skyward/site.sh ] || . /run/skyward/site.sh; \
    pip install --no-deps -r /requirements.txt
