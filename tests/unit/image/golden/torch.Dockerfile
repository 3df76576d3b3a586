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
# accelerate
# torch==2.13.0
# torch, torchvision from https://download.pytorch.org/whl/cpu only
RUN --mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,source=requirements,target=/run/requirements \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/var/cache/uv \
    --mount=type=secret,id=skyward_site \
    --mount=type=tmpfs,target=/run/skyward \
    set -e; [ ! -r /run/secrets/skyward_site ] || . /run/secrets/skyward_site; \
    export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    wanted="${SKYWARD_REQUIREMENTS:-/run/requirements/pyproject.toml}"; \
    extras=""; \
    needed="$(/opt/uv/bin/uv pip compile --quiet --no-header --no-annotate "$wanted")"; \
    for name in torchvision; do if echo "$needed" | grep -q "^$name=="; then extras="$extras --extra $name"; fi; done; \
    /opt/uv/bin/uv pip install --no-progress --compile-bytecode $extras -r "$wanted"
COPY runner /opt/skyward
RUN /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/skyward
ENV PYTHONPATH=/opt/skyward
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="30f3aeb51492d3974570e23db109e9c5644d626457dc448c6935be914a333cbe" skyward.python="3.11"

# --- requirements/pyproject.toml
[project]
name = "skyward-image-requirements"
version = "0"
requires-python = ">=3.11"
dependencies = [
    "accelerate",
    "torch==2.13.0",
]

[project.optional-dependencies]
torchvision = ["torchvision"]

[[tool.uv.index]]
name = "scoped-1"
url = "https://download.pytorch.org/whl/cpu"
explicit = true

[tool.uv.sources]
torch = { index = "scoped-1" }
torchvision = { index = "scoped-1" }

# --- tag
skyward:sky-1-30f3aeb51492d397
