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
# accelerate
# torch==2.13.0
# torch, torchvision from https://download.pytorch.org/whl/cpu only
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    sh /run/steps/step.sh install index-e7c18efb.txt=https://download.pytorch.org/whl/cpu
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
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="aa631b73f5484e0670f82f5e6d780ec860960fd453b631e3b14cd7b5f5431f9f" skyward.python="3.11"

# --- tag
skyward:sky-6-aa631b73f5484e06
