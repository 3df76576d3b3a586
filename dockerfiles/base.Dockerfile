# images/base.toml for Python 3.11 on linux/amd64. Rewritten by `make dockerfiles`.
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

FROM python AS image
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    sh /run/steps/step.sh runner skyward 10001 /home/skyward /work
ENV PYTHONPATH="/opt/skyward${PYTHONPATH:+:$PYTHONPATH}"
LABEL skyward.base="sha256:0000000000000000000000000000000000000000000000000000000000000000" skyward.image="f7fb49fbdf6df524c9aadd88eb0c058d01e989c2a946c6ac2076f517b224e4b3" skyward.python="3.11"
