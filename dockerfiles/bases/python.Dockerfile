# The default base: a Python of one minor version as a venv at /opt/venv, first on PATH.
# FROM_IMAGE is the official slim image, or a root file system made from Debian's packages.
ARG FROM_IMAGE
FROM ${FROM_IMAGE}
ARG PYTHON_MINOR
# The official image ships no bytecode; compiled once here, every container starts faster.
RUN set -eu; \
    python="$(command -v "python${PYTHON_MINOR}")"; \
    lib="$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"; \
    "$python" -m compileall -q -x '(^|/)(test|tests|lib2to3|idlelib)/' "$lib"; \
    "$python" -m venv /opt/venv; \
    /opt/venv/bin/python -c 'import ssl, sqlite3, ctypes, asyncio, zlib, lzma, bz2'; \
    mkdir -p /etc/ssl/certs; \
    rm -rf /root/.cache /tmp/*
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8
CMD ["python"]
