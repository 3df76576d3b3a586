# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN set -e; [ -x /opt/venv/bin/python ] || "$(command -v python3.11 || command -v python3 || echo python)" -m venv --system-site-packages /opt/venv; \
    /opt/venv/bin/python -c 'import sys; found = "%d.%d" % sys.version_info[:2]; sys.exit(found != "3.11" and "skyward: the base has Python " + found + ", wanted is 3.11")'

FROM python AS uv
RUN --mount=type=secret,id=skyward_site \
    --mount=type=tmpfs,target=/run/skyward \
    set -e; [ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site; \
    python -m pip install --quiet --no-cache-dir --root-user-action=ignore --target /opt/uv uv==0.13.8

FROM python AS image
RUN --mount=type=cache,id=skyward-apt-linux-arm64-cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=skyward-apt-linux-arm64-lib,target=/var/lib/apt,sharing=locked \
    --mount=type=secret,id=skyward_site \
    --mount=type=tmpfs,target=/run/skyward \
    set -e; [ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site; \
    rm -f /etc/apt/apt.conf.d/docker-clean; \
    apt-get update -qq; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends git libgomp1
# requests[socks]>=2
# tomli; python_version < "3.11"
RUN --mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,source=requirements,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-arm64,target=/var/cache/uv \
    --mount=type=secret,id=skyward_site \
    --mount=type=tmpfs,target=/run/skyward \
    set -e; [ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site; \
    export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    wanted="${SKYWARD_REQUIREMENTS:-/run/requirements/pyproject.toml}"; \
    extras=""; \
    /opt/uv/bin/uv pip install --no-progress --compile-bytecode $extras -r "$wanted"
COPY runner /opt/skyward
RUN /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/skyward
ENV PYTHONPATH=/opt/skyward
RUN --mount=type=secret,id=skyward_site --mount=type=tmpfs,target=/run/skyward ["/bin/sh", "-ec", "[ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site\ngit --version"]
RUN --mount=type=secret,id=skyward_site --mount=type=tmpfs,target=/run/skyward ["/bin/sh", "-ec", "[ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site\ncat <<'X'\n# not a comment\n$HOME \"quoted\" \\\nX"]
ARG SKYWARD_LF
ENV LINES="one${SKYWARD_LF}two" \
    PYTHONPATH="/opt/skyward:/srv/lib" \
    QUOTES="a \"b\" 'c' \$HOME \\"
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="3346668d1ae23a9b20f0340db16b6a75a206b4b5673584b3e9503f6d2be83c94" skyward.python="3.11"

# --- requirements/pyproject.toml
[project]
name = "skyward-image-requirements"
version = "0"
requires-python = ">=3.11"
dependencies = [
    "requests[socks]>=2",
    "tomli; python_version < \"3.11\"",
]

# --- tag
skyward:sky-1-3346668d1ae23a9b
