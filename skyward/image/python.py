"""The Python of an image: the base's own with its packages, else one that uv or apt brings; and the uv that installs.

Both are scripts of the build context, told what to do by the plan that they belong to.
"""

from __future__ import annotations

PYTHON_FILE = "python.sh"
VENV_FILE = "make_venv.py"
UV_SCRIPT_FILE = "uv.sh"

# what apt leaves that differs from build to build
APT_LEFTOVERS = (
    "/var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/ldconfig/aux-cache "
    "/var/cache/debconf/*-old /var/lib/dpkg/*-old"
)

_PYTHON = """\
# Makes /opt/venv of a Python {wanted}.
set -eu
minor() {{
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}}
find_python() {{
    for name in "${{VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}}" "${{CONDA_PREFIX:+$CONDA_PREFIX/bin/python}}" \\
        python python3 python{wanted}; do
        python=$(command -v "$name") && [ "$(minor "$python")" = {wanted} ] && return
    done
    return 1
}}
{bring}\
python=/opt/venv/bin/python
if [ "$(minor $python)" != {wanted} ] && ! find_python{or_bring}; then
    found=$(minor python || minor python3) && found="Python $found" || found="no Python"
    echo "skyward: the base has $found, wanted is Python {wanted}{why}" >&2
    exit 1
fi
"$python" /run/skyward/make_venv.py
"""
_BRING = """\
bring_python() {{
    export UV_CACHE_DIR=/run/cache/uv
    if /run/uv/bin/uv python install --no-progress --no-bin --install-dir /opt/python {wanted}; then
        python=$(echo /opt/python/cpython-{wanted}.*/bin/python{wanted})
        "$python" -m compileall -q --invalidation-mode unchecked-hash "${{python%/bin/*}}/lib/python{wanted}" || :
        return
    fi
    if command -v apt-get >/dev/null; then
        apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \\
                python{wanted} python{wanted}-venv &&
            find_python && rm -rf {leftovers} && return
    fi
    return 1
}}
"""
_BRING_FAILED = ", which neither uv could download nor apt install"

# A virtual environment made from another one's Python is one of the Python below it: the packages are added by a line
# of its own, behind its own packages, which so win. `addsitedir` heeds .pth files there, as of editable installs.
VENV = """\
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
            file.writelines("import site; site.addsitedir(%r)\\n" % folder for folder in folders)


def settings(prefix):
    with open(os.path.join(prefix, "pyvenv.cfg")) as file:
        return file.read().lower()


def let_through(path):
    \"""Let every user pass the directories that lead to a path: below /root there are Pythons as well.\"""
    while path != "/":
        mode = os.stat(path).st_mode
        if os.path.isdir(path) and not mode & 0o001:
            os.chmod(path, mode | 0o011)
        path = os.path.dirname(path)


if sys.prefix != TARGET:
    make()
for path in {sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), sysconfig.get_path("stdlib")}:
    let_through(os.path.realpath(path))
"""

# uv comes from the index that pip is set to, with pip of whichever Python the base has
UV_SCRIPT = """\
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
"""


def python_script(python: str, *, brings: bool) -> str:
    """The script that makes /opt/venv.

    Args:
        python: minor version of the image's Python.
        brings: whether one has to be brought, as the base has none of that version.
    """
    bring = _BRING.format(wanted=python, leftovers=APT_LEFTOVERS) if brings else ""
    or_bring, why = (" && ! bring_python", _BRING_FAILED) if brings else ("", "")
    return _PYTHON.format(wanted=python, bring=bring, or_bring=or_bring, why=why)
