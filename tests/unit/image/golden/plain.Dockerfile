# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN set -e; [ -x /opt/venv/bin/python ] || "$(command -v python3.11 || command -v python3 || echo python)" -m venv --system-site-packages /opt/venv; \
    /opt/venv/bin/python -c 'import sys; found = "%d.%d" % sys.version_info[:2]; sys.exit(found != "3.11" and "skyward: the base has Python " + found + ", wanted is 3.11")'

FROM python AS image
COPY runner /opt/skyward
RUN /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/skyward
ENV PYTHONPATH=/opt/skyward
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="127edfbe9ce26113ccdb3e87e854a1edc0adc724345370eecb9f3c7aa930ae80" skyward.python="3.11"

# --- tag
skyward:sky-1-127edfbe9ce26113
