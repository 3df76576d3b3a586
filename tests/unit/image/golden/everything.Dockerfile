# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=cache,id=skyward-apt-linux-arm64-cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=skyward-apt-linux-arm64-lib,target=/var/lib/apt,sharing=locked \
    set -e; . /run/skyward/step.sh; \
    echo '#clear DPkg::Post-Invoke; #clear APT::Update::Post-Invoke;' > /run/skyward/keep-archives; \
    apt-get -c /run/skyward/keep-archives update -qq; \
    DEBIAN_FRONTEND=noninteractive apt-get -c /run/skyward/keep-archives install -y -qq --no-install-recommends git libgomp1; \
    rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old; \
    end_step
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    set -e; . /run/skyward/step.sh; \
    [ -x /opt/venv/bin/python ] || "$(command -v python3.11 || command -v python3 || echo python)" -m venv --system-site-packages /opt/venv; \
    /opt/venv/bin/python -c 'import sys; found = "%d.%d" % sys.version_info[:2]; sys.exit(found != "3.11" and "skyward: the base has Python " + found + ", wanted is 3.11")'; \
    end_step

FROM python AS uv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=uv.txt,target=/run/skyward/uv.txt \
    set -e; . /run/skyward/step.sh; \
    python -m pip install --quiet --no-cache-dir --root-user-action=ignore --no-deps --only-binary :all: --require-hashes --target /opt/uv -r /run/skyward/uv.txt; \
    end_step

FROM python AS image
# requests[socks]>=2
# tomli; python_version < "3.11"
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/light/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-arm64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=CHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run --mount=type=bind,source=step.sh,target=/run/skyward/step.sh --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh ["/bin/sh", "-ec", ". /run/skyward/step.sh; /bin/sh -ec \"$0\"; end_step", "git --version"]
RUN --mount=type=tmpfs,target=/run --mount=type=bind,source=step.sh,target=/run/skyward/step.sh --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh ["/bin/sh", "-ec", ". /run/skyward/step.sh; /bin/sh -ec \"$0\"; end_step", "cat <<'X'\n# not a comment\n$HOME \"quoted\" \\\nX"]
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
ARG SKYWARD_LF
ENV LINES="one${SKYWARD_LF}two" \
    PYTHONPATH="/opt/skyward:/srv/lib" \
    QUOTES="a \"b\" 'c' \$HOME \\"
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="07a1303de9a0a489682d8f0e58d9ee2bc3d5717f98ba30fba3c017648505e8e0" skyward.python="3.11"

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

# --- uv.txt
uv==0.13.8 --hash=sha256:e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984 --hash=sha256:29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a --hash=sha256:0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d --hash=sha256:5337c30bb893b4f9ce0ceb921ba2da0d13f649da644f40ad3bef84083bef0203 --hash=sha256:bfcaada3989c7716ad4b58673cd1413fad4fdc6b2e446f9553db0ef18da20850 --hash=sha256:b26fe533dc6153787e40443b7d9428ed41349127bff36a954ec82c48be01ded9

# --- tag
skyward:sky-4-07a1303de9a0a489
