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
# numpy>=2
# scikit-learn
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
ENV OMP_NUM_THREADS="1"
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="163b389dd0bfcba1ea99c3fd8176363a86a01d104f90634b04905041d6e8fc06" skyward.python="3.11"

# --- tag
skyward:sky-6-163b389dd0bfcba1
