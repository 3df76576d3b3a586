# uv: puts uv into /opt/uv, from the index that pip is set to, with pip of whichever Python the base has.
python=
for name in python python3 /usr/bin/python3; do
    if "$name" -m pip --version >/dev/null 2>&1; then python=$name; break; fi
done
if [ -z "$python" ] && command -v apt-get >/dev/null; then
    apt-get -o Acquire::Languages=none update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip
    python=/usr/bin/python3
fi
if [ -z "$python" ]; then
    echo "skyward: the base has no pip to fetch uv with, and no apt to install one" >&2
    exit 1
fi
# settings of pip as variables: versions that do not know one ignore it. Those of the base may lead elsewhere
unset PIP_PREFIX PIP_ROOT PIP_CONSTRAINT
export PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0
export PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m pip install --quiet --no-deps --only-binary :all: --require-hashes --find-links /run/requirements \
    --target /opt/uv -r /run/requirements/uv.txt
