# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    set -e; . /run/skyward/step.sh; \
    [ -x /opt/venv/bin/python ] || "$(command -v python3.11 || command -v python3 || echo python)" -m venv --system-site-packages /opt/venv; \
    /opt/venv/bin/python -c 'import sys; found = "%d.%d" % sys.version_info[:2]; sys.exit(found != "3.11" and "skyward: the base has Python " + found + ", wanted is 3.11")'; \
    end_step

FROM python AS image
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    set -e; . /run/skyward/step.sh; \
    cp -r /run/runner /opt/skyward; \
    /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash -x '/opt/skyward/skyward/(build|cli|engine|image|pool|providers)/' /opt/skyward; \
    chmod -R a+rX /opt/skyward; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/group || echo 'skyward:x:10001:' >>/etc/group; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/passwd || echo 'skyward:x:10001:10001::/home/skyward:/bin/sh' >>/etc/passwd; \
    mkdir -p /home/skyward /work; \
    chmod 1777 /home/skyward /work; \
    [ "$PWD" = / ] || chmod a+rwx .; \
    touch -d @315532800 /etc; \
    end_step
ENV PYTHONPATH=/opt/skyward
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="6dd1f61ec0d3118ee0e9d1780fb04a5d2110a32d0d848c842929f4b6f5bb64e2" skyward.python="3.11"

# --- step.sh
: > /run/skyward/begun
sleep 0.02
export SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0
for settings in site.sh build-env.sh; do
    [ ! -r "/run/skyward/$settings" ] || . "/run/skyward/$settings"
done
end_step() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path '/etc/host*' \
        -o -path /etc/resolv.conf \) -prune -o -newer /run/skyward/begun -exec touch -h -d @315532800 {} +
}

# --- tag
skyward:sky-4-6dd1f61ec0d3118e
