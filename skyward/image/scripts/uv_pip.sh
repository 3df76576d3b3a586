# uv_pip ARGUMENT...: installs into /opt/venv exactly the packages of a lock, from whichever index has the file of a hash.
# A lock may have been made where the indexes were asked in another order.
export UV_CACHE_DIR=/run/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/opt/venv/bin/python
[ ! -d /run/requirements ] || export UV_FIND_LINKS=/run/requirements # the client's own files are beside the lists
export PYC_INVALIDATION_MODE=UNCHECKED_HASH # importing torch takes 13 % less time
said=$(/opt/venv/bin/python -c '' 2>/dev/null || :; echo .) # the dot keeps empty lines
if [ "$said" != . ]; then
    echo "skyward: the base's Python prints as it starts, with which uv cannot work: '${said%.}'. Have the sitecustomize.py or" \
        "the .pth file that does so write to stderr" >&2
    exit 1
fi
platform=
if [ "$1" = --python-platform ]; then
    platform=$2
    shift 2
fi
# The lock has followed [tool.uv.sources]; a member of a workspace is built here without the others.
uv_pip() {
    /run/uv/bin/uv pip install --no-progress --compile-bytecode --no-deps --no-sources --index-strategy unsafe-best-match \
        ${platform:+--python-platform "$platform"} "$@"
}

# The address of an index at this site, which may have a mirror of it; "none" if that is a folder on the client.
address_of() {
    variable=SKYWARD_INDEX_$(printf %s "$1" | sha256sum | cut -c-8)
    eval "mirror=\${$variable:-}"
    printf %s "${mirror:-$1}"
}

# uv_build NAME ARGUMENT...: the same for a package that is built, with exactly the packages that the lock has for that.
# What it takes from one index is found at the page that the index has of it. Compilers, headers, variables and the build's
# requirements decide what comes out: the cache mount is one of base, apt and variables, with a folder for the rest.
# What compilers write for debuggers holds random names of folders, so it is left out unless CPPFLAGS ask for it. (CFLAGS
# would take the place of those that Python was built with, optimization included.)
uv_build() {
    export CPPFLAGS="-g0 ${CPPFLAGS-}" TMPDIR=/run/cache/built/tmp
    mkdir -p "$TMPDIR"
    constraints=/run/requirements/$1.build.txt
    pages=/run/requirements/$1.pages.txt
    shift
    if [ -r "$pages" ]; then
        while read -r index name; do
            address=$(address_of "$index" | sed 's:/*$::')
            [ "$address" = none ] || set -- "$@" --find-links "$address/$name/"
        done < "$pages"
    fi
    UV_CACHE_DIR=/run/cache/built/$(cat /var/lib/dpkg/status "$constraints" 2>/dev/null | sha256sum | cut -c-16) \
        uv_pip --preview-features build-dependency-hashes --require-build-hashes --build-constraints "$constraints" "$@"
}

# forget_times: removes what uv notes in a package from a file: when that last changed. Only uv reads it.
forget_times() {
    find /opt/venv -name uv_cache.json -newer /run/skyward/begun -exec \
        sh -c 'rm "$1"; sed -i /uv_cache.json/d "${1%/*}/RECORD"' - {} \;
}
