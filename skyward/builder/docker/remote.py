"""A build on another machine: context and secrets are sent over SSH, and that machine's docker command builds.

Nothing is installed there, and nothing stays there but the image: the folder is private to the user and removed with
the build. If the script itself is killed there, its lock ends with it, and the next build removes the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any

from skyward.builder.docker.process import run
from skyward.builder.docker.progress import Progress
from skyward.builder.registry.auth import Logins, with_logins
from skyward.errors import EngineError
from skyward.image import TIME
from skyward.model.ssh import SshHost

UNREACHED = 255  # ssh's own exit status where it, and not the command, failed
# The folder comes as a tar of known length, after which the input stays open: its end means that the client is gone.
# Which command can build is found out as `skyward.builder.docker.command` does here. Proxies are those of that machine.
_SCRIPT = r"""
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
time=$2
shift 2
for name in HTTP_PROXY HTTPS_PROXY FTP_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy ftp_proxy no_proxy all_proxy; do
    if printenv "$name" >/dev/null; then set -- "$@" --build-arg "$name"; fi
done
build=
clis=${SKYWARD_DOCKER_CLI:-docker /usr/bin/docker}
for cli in $clis; do
    "$cli" buildx version >/dev/null 2>&1 || continue
    build="$cli buildx build --builder default --load --build-arg SOURCE_DATE_EPOCH=$time"
    break
done
[ "$build" ] || for cli in $clis; do
    version=$("$cli" --version 2>/dev/null) && version=${version#Docker version }
    [ "$version" ] && [ "${version%%.*}" -lt 23 ] && export DOCKER_BUILDKIT=1 && build="$cli build" && break
done
[ "$build" ] || command -v docker >/dev/null || ! command -v podman >/dev/null || build="podman build --format=docker"
if [ -z "$build" ]; then
    command -v docker >/dev/null || { echo 'docker: command not found'; exit 127; }
    echo 'skyward: the docker command there has no buildx; install its package docker-buildx'; exit 1
fi
export BUILDX_NO_DEFAULT_ATTESTATIONS=1
exec 3<&0
$build "$@" "$place/context" </dev/null &
pid=$!
{ cat >/dev/null; kill "$pid"; } <&3 >/dev/null 2>&1 &
watch=$!
wait "$pid"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
"""


def run_there(
    host: SshHost,
    words: Sequence[str],
    progress: Progress,
    folder: Path,
    *,
    secrets: Mapping[str, bytes] = MappingProxyType({}),
    logins: Logins = MappingProxyType({}),
    forward: str | None = None,
) -> int:
    """Send a folder to a machine and run its docker build there: its directory `context`, with these options.

    Paths in the options are relative to the folder. Returns the exit status: the build's, or 255 where SSH failed.

    Args:
        host: the machine.
        words: options of the build.
        progress: receives its output.
        folder: is sent there.
        secrets: are sent with it, without lying on this machine's disk under any name, and given to the build.
        logins: for registries, which the docker command there has besides those of its own user.
        forward: a port of that machine that leads to one of this, for the time of the build, as ssh's -R has it.

    Raises:
        EngineMissingError: the machine cannot be reached, or nothing there can build.
        EngineError: it forwards no port.
    """
    options: tuple[str, ...] = ()
    given: list[str] = []
    if forward:  # a connection of its own: one that is shared would keep the port
        host, options = replace(host, control=None), ("-o", "ExitOnForwardFailure=yes", "-R", forward)
    with TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name, filter=_anonymous)
            for name, value in secrets.items():
                _add_secret(tar, f"secrets/{name}", value)
                given += ["--secret", f"id={name},type=file,src=secrets/{name}"]
            if logins:
                _add_secret(tar, "login/config.json", json.dumps(with_logins(_config_there(host), logins)).encode())
        size = packed.tell()
        packed.seek(0)
        command = host.command("sh", "-c", _SCRIPT, "sh", str(size), str(TIME), *given, *words, options=options)
        code = run(command, progress, folder=folder, environment=os.environ, stdin=packed)
    if code == UNREACHED and "port forwarding failed" in progress.ending:
        raise EngineError(
            f"The build on {host.url} needs packages from folders of this machine, and ssh could not forward a port to "
            "them. Repeat it, in case the port was taken; or have AllowTcpForwarding set in the sshd_config there; or "
            "let an index serve the packages (SKYWARD_INDEXES)."
        )
    if code in (UNREACHED, 127):
        failure = host.failure(progress.ending)
        if failure:
            raise failure
    return code


def _config_there(host: SshHost) -> dict[str, Any]:
    """The configuration of the docker command on a machine."""
    words = host.command("sh", "-c", 'cat "${DOCKER_CONFIG:-$HOME/.docker}/config.json"')
    done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    try:
        found = json.loads(done.stdout)
    except ValueError:  # there is none; or it is damaged, and the docker command there would go on without it
        return {}
    return found if isinstance(found, dict) else {}


def _add_secret(tar: tarfile.TarFile, name: str, value: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.size = 0o600, len(value)
    tar.addfile(member, BytesIO(value))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
