# python VERSION [bring]: makes /opt/venv of that Python: the base's own, or one that uv or apt brings.
wanted=$1
bring=${2:-}

# a line of its own: a sitecustomize or a .pth may print as Python starts and ends
minor() {
    "$1" -c 'import sys; print("\nskyward %d.%d" % sys.version_info[:2])' 2>/dev/null | sed -n 's/^skyward //p'
}
find_python() {
    for name in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
        python python3 "python$wanted"; do
        python=$(command -v "$name") && [ "$(minor "$python")" = "$wanted" ] && return
    done
    return 1
}
bring_python() {
    [ "$bring" ] || return
    if UV_CACHE_DIR=/run/cache/uv /run/uv/bin/uv python install \
        --no-progress --no-bin --install-dir /opt/python "$wanted"; then
        python=$(echo /opt/python/cpython-"$wanted".*/bin/python"$wanted")
        "$python" -m compileall -q --invalidation-mode unchecked-hash "${python%/bin/*}/lib/python$wanted" || :
        return
    fi
    command -v apt-get >/dev/null && apt-get -o Acquire::Languages=none update -qq && \
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "python$wanted" "python$wanted-venv" && find_python && . /run/steps/forget_apt.sh
}

# a base may have an environment at /opt/venv, and start another
keep=
[ "$(minor /opt/venv/bin/python)" != "$wanted" ] || keep=keep
if ! find_python && ! { [ "$keep" ] && python=/opt/venv/bin/python; } && ! bring_python; then
    found=$(minor python)
    found=${found:-$(minor python3)}
    found=${found:+Python $found}
    why=${bring:+, which neither uv could download nor apt install}
    echo "skyward: the base has ${found:-no Python}, wanted is Python $wanted$why" >&2
    exit 1
fi
"$python" /run/steps/make_venv.py $keep
[ -z "$keep" ] || /opt/venv/bin/python /run/steps/make_venv.py
