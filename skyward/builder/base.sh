# Prints what a base has, for base.py: one fact a line, after "skyward:". The arguments are its entry point.
exec </dev/null 2>/dev/null
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
say() {
    printf '\nskyward: %s\n' "$*"
}

for name in cat chmod cp find grep mkdir sleep touch; do
    command -v "$name" >/dev/null || say missing "$name"
done
command -v apt-get >/dev/null && say apt
(. /etc/os-release && say system "$PRETTY_NAME")

if libc=$(getconf GNU_LIBC_VERSION); then
    say libc "$libc"
elif [ -e "$(echo /lib/ld-musl-*)" ]; then
    say libc musl
else
    for file in /lib/*/libc.so.6 /lib*/libc.so.6; do
        "$file" | while read -r line; do
            case $line in "GNU C Library"*version*) line=${line##*version } && say libc "glibc ${line%%[!0-9.]*}" ;; esac
        done
    done
fi

# the places in which image/scripts/python.sh searches
for name in /opt/venv/bin/python "$VIRTUAL_ENV/bin/python" "$CONDA_PREFIX/bin/python" python python3 \
    python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 python3.15; do
    path=$(command -v "$name") &&
        "$path" -c 'import sys; print("\nskyward: python %d.%d" % sys.version_info[:2], sys.argv[1])' "$path"
done

# an entry point that runs the command it is given ends with it; a program of its own may never end
if [ $# -gt 0 ]; then
    "$@" /bin/sh -c 'printf "\nskyward: runs\n"' &
    started=$!
    (sleep 20 && kill -9 "$started") >/dev/null &
    wait "$started"
    kill "$!"
fi
