#!/bin/sh
# Builds a folder on this machine: remote.sh SIZE OPTION...
# The folder is sent as a tar of SIZE bytes, after which the input stays open: its end means that the client is gone.
# The command is selected as in `command.py`. Proxies are those of this machine.
umask 077
place=$(mktemp -d "${TMPDIR:-/tmp}/skyward-build-XXXXXXXX") || exit 1
trap 'rm -rf "$place"' EXIT
trap 'exit 129' HUP INT TERM PIPE
if command -v flock >/dev/null; then
    exec 9<"$place" && flock 9 || exit 1
    for other in "${TMPDIR:-/tmp}"/skyward-build-*; do
        if [ -d "$other" ] && [ ! -L "$other" ] && [ -O "$other" ]; then flock -n "$other" rm -rf "$other"; fi
    done
fi
cd "$place" && head -c "$1" | tar -xpf - || exit 1
if [ -d login ]; then
    own=${DOCKER_CONFIG:-$HOME/.docker}
    for path in "$own"/*; do
        if [ -e "$path" ] && [ "$path" != "$own/config.json" ]; then ln -s "$path" login/ || exit 1; fi
    done
    export DOCKER_CONFIG="$place/login" REGISTRY_AUTH_FILE="$place/login/config.json"
fi
shift
for name in HTTP_PROXY HTTPS_PROXY FTP_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy ftp_proxy no_proxy all_proxy; do
    if printenv "$name" >/dev/null; then set -- --build-arg "$name" "$@"; fi
done
build=
for cli in ${SKYWARD_DOCKER_CLI:-docker /usr/bin/docker podman}; do
    version=$("$cli" --version 2>/dev/null) || continue
    case $version in
    "Docker version "*)
        version=${version#Docker version }
        [ "${version%%.*}" -lt 23 ] || "$cli" buildx version >/dev/null 2>&1 || continue
        build="$cli build"
        ;;
    *) build="$cli build --format=docker" ;;
    esac
    break
done
if [ -z "$build" ]; then
    command -v docker >/dev/null || { echo 'docker: command not found'; exit 127; }
    echo 'skyward: the docker command there has no buildx; install its package docker-buildx'; exit 1
fi
export DOCKER_BUILDKIT=1 BUILDX_NO_DEFAULT_ATTESTATIONS=1 BUILDX_BUILDER=default
exec 3<&0
$build "$@" </dev/null &
pid=$!
{ cat >/dev/null; kill "$pid"; } <&3 >/dev/null 2>&1 &
watch=$!
wait "$pid"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
