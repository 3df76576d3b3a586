# Compiled by skyward from a description of the image; change that, not this file.
# A step is a script of steps/, in the environment that steps/step.sh gives to it.

FROM python:3.11-slim AS python
ADD mount-points.tar /
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    sh /run/steps/step.sh python 3.11
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv

FROM python AS image
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    sh /run/steps/step.sh runner skyward 10001 /home/skyward /work
ENV PYTHONPATH="/opt/skyward${PYTHONPATH:+:$PYTHONPATH}"
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="02d805299094cc5d512a983e03be05b23d94252d7835c3f56806640777ae3314" skyward.python="3.11"

# --- tag
skyward:sky-6-02d805299094cc5d
