# The nodes of compose.yaml when no pool brings it up: `docker compose up` builds them from this clone.
# Any builder takes it, also one without BuildKit. Pools that bring the file up use images of their own.
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG PACKAGES=scikit-learn
USER root
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN set -eu; \
    [ -x /opt/venv/bin/python ] || python3 -m venv --system-site-packages /opt/venv; \
    export PYTHONPATH=/opt/skyward; \
    for package in cloudpickle ${PACKAGES}; do \
        /opt/venv/bin/python -m pip show --quiet "$package" 2>/dev/null \
            || /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check "$package"; \
    done
COPY skyward /opt/skyward/skyward
RUN PYTHONPATH=/opt/skyward /opt/venv/bin/python -c 'import skyward.runner.entry.standby, cloudpickle' \
    && /opt/venv/bin/python -m compileall -q /opt/skyward/skyward/runner /opt/skyward/skyward/runtime /opt/skyward/skyward/wire \
    && chmod -R a+rX /opt/skyward
# the user of functions, unless the compose file says otherwise
RUN set -eu; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/group || echo 'skyward:x:10001:' >>/etc/group; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/passwd || echo 'skyward:x:10001:10001::/home/skyward:/bin/sh' >>/etc/passwd; \
    mkdir -p /home/skyward /work; \
    chmod 1777 /home/skyward /work
ENV PYTHONPATH=/opt/skyward
