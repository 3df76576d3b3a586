# images/huggingface.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
# The digest in FROM is left out, and those in LABEL stand for what only a build knows.
# Compiled by skyward from a description of the image; change that, not this file.
# A step is a script of steps/, in the environment that steps/step.sh gives to it.

FROM python:3.11-slim AS python
ADD mount-points.tar /
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    sh /run/steps/step.sh python 3.11
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv

FROM python AS uv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=requirements/uv,target=/run/requirements \
    sh /run/steps/step.sh uv
LABEL skyward.stage=uv

FROM python AS image
# accelerate==1.15.0
# datasets==5.2.0
# numpy
# tokenizers
# torch==2.9.1
# transformers==5.23.0
# torch from https://download.pytorch.org/whl/cu128 only
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    sh /run/steps/step.sh install index-7612c3bf.txt=https://download.pytorch.org/whl/cu128
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/medium,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    sh /run/steps/step.sh install locked.txt
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=cache,id=skyward-apt-linux-amd64-cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=skyward-apt-linux-amd64-lib,target=/var/lib/apt,sharing=locked \
    sh /run/steps/step.sh apt git
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/light,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    sh /run/steps/step.sh install locked.txt
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    sh /run/steps/step.sh runner skyward 10001 /home/skyward /work
ENV PYTHONPATH="/opt/skyward${PYTHONPATH:+:$PYTHONPATH}"
ENV HF_HUB_DISABLE_TELEMETRY="1" \
    TOKENIZERS_PARALLELISM="false"
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="57e2d36f9d01d690d6ed422da3c941f97bdd97f52b7252652c98f67cd3969a2a" skyward.python="3.11"
