# Compiled by skyward from a description of the image; change that, not this file.

FROM python:3.11-slim AS python
ADD mount-points.tar /
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=python.sh,target=/run/skyward/python.sh \
    --mount=type=bind,source=make_venv.py,target=/run/skyward/make_venv.py \
    set -e; . /run/skyward/step.sh; \
    sh /run/skyward/python.sh; \
    end_step
ENV PATH=/opt/venv/bin:$PATH VIRTUAL_ENV=/opt/venv

FROM python AS uv
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=uv.sh,target=/run/skyward/uv.sh \
    --mount=type=bind,source=uv.txt,target=/run/skyward/uv.txt \
    set -e; . /run/skyward/step.sh; \
    sh /run/skyward/uv.sh; \
    end_step

FROM python AS image
# accelerate
# torch==2.13.0
# torch, torchvision from https://download.pytorch.org/whl/cpu only
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/framework/index-e7c18efb.txt,target=/run/skyward/index-e7c18efb.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    [ -n "${SKYWARD_INDEX_e7c18efb:-}" ] || SKYWARD_INDEX_e7c18efb=https://download.pytorch.org/whl/cpu; env -u UV_CONFIG_FILE /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/index-e7c18efb.txt --no-config --default-index "$SKYWARD_INDEX_e7c18efb"; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/medium/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/uv \
    --mount=type=bind,source=requirements/light/locked.txt,target=/run/skyward/locked.txt \
    --mount=type=cache,id=skyward-uv-linux-amd64,target=/run/cache/uv \
    set -e; . /run/skyward/step.sh; \
    export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python; \
    export PYC_INVALIDATION_MODE=UNCHECKED_HASH; \
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --index-strategy unsafe-best-match --require-hashes -r /run/skyward/locked.txt; \
    end_step
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=step.sh,target=/run/skyward/step.sh \
    --mount=type=secret,id=skyward_site,target=/run/skyward/site.sh \
    --mount=type=bind,source=runner,target=/run/runner \
    set -e; . /run/skyward/step.sh; \
    rm -rf /opt/skyward; \
    cp -r /run/runner /opt/skyward; \
    /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash -x '/opt/skyward/skyward/(build|cli|engine|image|pool|providers)/' /opt/skyward; \
    chmod -R a+rX /opt/skyward; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/group || echo 'skyward:x:10001:' >>/etc/group; \
    grep -q '^[^:]*:[^:]*:10001:' /etc/passwd || echo 'skyward:x:10001:10001::/home/skyward:/bin/sh' >>/etc/passwd; \
    mkdir -p /home/skyward /work; \
    chmod 1777 /home/skyward /work; \
    [ "$PWD" = / ] || chmod a+rwx .; \
    above=$PWD; while [ "$above" ]; do find "$above" -maxdepth 0 ! -perm -001 -exec chmod a+x {} +; above=${above%/*}; done; \
    touch -d @315532800 /etc; \
    end_step
ENV PYTHONPATH="/opt/skyward${PYTHONPATH:+:$PYTHONPATH}"
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="1a9ec0a329269545105ec06e441cc5c9feb40a4021adb54675402d208e3bb266" skyward.python="3.11"

# --- step.sh
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
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
drop_stale_bytecode() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run \) -prune \
        -o -name '*.py' -cnewer /run/skyward/begun -print | while IFS= read -r source; do
        name=${source##*/}
        for compiled in "${source%/*}/__pycache__/${name%.py}".*.pyc; do
            [ "$compiled" -nt /run/skyward/begun ] || rm -f "$compiled"
        done
    done
}

# --- python.sh
# Makes /opt/venv of a Python 3.11.
set -eu
minor() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}
find_python() {
    for name in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
        python python3 python3.11; do
        python=$(command -v "$name") && [ "$(minor "$python")" = 3.11 ] && return
    done
    return 1
}
python=/opt/venv/bin/python
if [ "$(minor $python)" != 3.11 ] && ! find_python; then
    found=$(minor python || minor python3) && found="Python $found" || found="no Python"
    echo "skyward: the base has $found, wanted is Python 3.11" >&2
    exit 1
fi
"$python" /run/skyward/make_venv.py

# --- make_venv.py
import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv

TARGET = "/opt/venv"


def make():
    inner = sys.prefix != sys.base_prefix
    seen = not inner or "include-system-site-packages = true" in settings(sys.prefix)
    venv.create(TARGET, system_site_packages=seen, clear=True, symlinks=True)
    # some distributions have ensurepip, or what it installs, in packages of their own; nothing of ours needs pip
    if importlib.util.find_spec("ensurepip"):
        words = ["-I", "-m", "ensurepip", "--upgrade", "--default-pip"]
        subprocess.run([os.path.join(TARGET, "bin", "python"), *words], check=False, stdout=subprocess.DEVNULL)
    if inner:
        folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        lib = os.path.join(TARGET, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
        with open(os.path.join(lib, "skyward_base.pth"), "w") as file:
            file.writelines("import site; site.addsitedir(%r)\n" % folder for folder in folders)


def settings(prefix):
    with open(os.path.join(prefix, "pyvenv.cfg")) as file:
        return file.read().lower()


def let_through(path):
    """Let every user pass the directories that lead to a path: below /root there are Pythons as well."""
    while path != "/":
        mode = os.stat(path).st_mode
        if os.path.isdir(path) and not mode & 0o001:
            os.chmod(path, mode | 0o011)
        path = os.path.dirname(path)


if sys.prefix != TARGET:
    make()
for path in {sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), sysconfig.get_path("stdlib")}:
    let_through(os.path.realpath(path))

# --- uv.sh
# Puts uv into /opt/uv.
set -eu
python=
for name in python python3 /usr/bin/python3; do
    if "$name" -m pip --version >/dev/null 2>&1; then python=$name; break; fi
done
if [ -z "$python" ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip
    python=/usr/bin/python3
fi
if [ -z "$python" ]; then
    echo "skyward: the base has no pip to fetch uv with, and no apt to install one" >&2
    exit 1
fi
# settings of pip as variables: versions that do not know one pass over it
export PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m pip install --quiet --no-deps --only-binary :all: --require-hashes --target /opt/uv -r /run/skyward/uv.txt

# --- uv.txt
uv==0.13.8 --hash=sha256:e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984 --hash=sha256:29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a --hash=sha256:0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d --hash=sha256:5337c30bb893b4f9ce0ceb921ba2da0d13f649da644f40ad3bef84083bef0203 --hash=sha256:bfcaada3989c7716ad4b58673cd1413fad4fdc6b2e446f9553db0ef18da20850 --hash=sha256:b26fe533dc6153787e40443b7d9428ed41349127bff36a954ec82c48be01ded9

# --- tag
skyward:sky-5-1a9ec0a329269545
