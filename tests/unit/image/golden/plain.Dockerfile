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

FROM python AS image
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
LABEL skyward.base="sha256:ba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5eba5e" skyward.image="e227507e6254de1a55d1774c7e7d8fd3e8730b9f7e7b24ad74e5894b21eaa5ba" skyward.python="3.11"

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

# --- tag
skyward:sky-5-e227507e6254de1a
