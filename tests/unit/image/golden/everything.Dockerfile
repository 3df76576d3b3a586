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
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=cache,id=skyward-apt-linux-arm64-cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=skyward-apt-linux-arm64-lib,target=/var/lib/apt,sharing=locked \
    sh /run/steps/step.sh apt git libgomp1
# requests[socks]>=2
# tomli; python_version < "3.11"
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/light,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-arm64,target=/run/cache/uv \
    sh /run/steps/step.sh install locked.txt
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    ["/bin/sh", "/run/steps/step.sh", "run", "git --version"]
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    ["/bin/sh", "/run/steps/step.sh", "run", "cat <<'X'\n# not a comment\n$HOME \"quoted\" \\\nX"]
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=steps,target=/run/steps \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    sh /run/steps/step.sh runner skyward 10001 /home/skyward /work
ARG SKYWARD_LF
ENV PYTHONPATH="/opt/skyward:/srv/lib${PYTHONPATH:+:$PYTHONPATH}"
ENV LINES="one${SKYWARD_LF}two" \
    QUOTES="a \"b\" 'c' \$HOME \\"
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="19402fdf5dc637bd6c3ac8482ff669744934c5f7964f73c54f5846ea376c66d3" skyward.python="3.11"

# --- tag
skyward:sky-6-19402fdf5dc637bd
