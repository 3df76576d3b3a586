"""The process of a build command: its output line by line, its input, and its end with all that it started.

For a build on another machine context and secrets are sent over SSH, and that machine's docker command builds. Nothing
is installed there, and nothing stays there but the image: the folder is private to the user and removed with the build.
If the script itself is killed there, its lock ends with it, and the next build removes the folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from shutil import copyfileobj
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO, Any

from skyward.builder.docker.progress import BuildahProgress, Progress
from skyward.builder.registry.auth import Logins, with_logins
from skyward.errors import EngineError, EngineMissingError
from skyward.image import TIME
from skyward.model.ssh import SshHost

_QUIET_S = 0.3
_SILENCE_S = 3.0  # of a command, before its engine is asked whether it is there
_GRACE_S = 5.0  # the command's time to tell the engine that the build is off
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


def run(
    words: Sequence[str],
    progress: Progress | BuildahProgress,
    *,
    folder: Path,
    environment: Mapping[str, str],
    stdin: IO[bytes] | None = None,
    alive: Callable[[], object] | None = None,
    is_podman: bool = False,
) -> int:
    """Run a command to its end and return its exit status; its output goes to `progress`.

    It has a session of its own, so that Ctrl-C reaches it only through this process, which then ends all of it.

    Args:
        words: the command.
        progress: receives its lines.
        folder: its working directory.
        environment: its environment.
        stdin: its input, which stays open after that, so that its end tells the command to stop.
        alive: called again and again while the command says nothing; what it raises ends the command.
        is_podman: whether it is Podman's command, which ends at once by SIGINT and leaves the step running.

    Raises:
        EngineError: it could not be started.
    """
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(f"The command {words[0]!r} could not be started: {error}.") from error
    assert process.stdout
    grace_s = _GRACE_S
    with process.stdout:
        try:
            if stdin is not None and process.stdin is not None:
                threading.Thread(
                    target=_write, args=(stdin, process.stdin), name="skyward-context", daemon=True
                ).start()
            _follow(process.stdout, progress, alive)
            return process.wait()
        except EngineMissingError:
            grace_s = 0.0  # no engine is left to cancel the build on
            raise
        finally:
            _end(process, grace_s, is_podman=is_podman)


def _write(source: IO[bytes], stdin: IO[bytes]) -> None:
    # a command that ends early closes its side, and says why on its output
    with suppress(OSError, ValueError):
        copyfileobj(source, stdin, 1 << 18)
        stdin.flush()


def _follow(output: IO[bytes], progress: Progress | BuildahProgress, alive: Callable[[], object] | None) -> None:
    """Pass lines on as they come, and say when none has come for a moment: a silent step is then known to run."""
    rest = b""
    with DefaultSelector() as ready:
        ready.register(output, EVENT_READ)
        while True:
            if not ready.select(_QUIET_S):
                progress.quiet()
                while not ready.select(_SILENCE_S):
                    if alive is not None:
                        alive()
            chunk = os.read(output.fileno(), 1 << 16)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines if chunk else [rest]:
                progress.feed(line.decode(errors="replace").rstrip("\r"))
            if not chunk:
                return


def _end(process: subprocess.Popen[bytes], grace_s: float, *, is_podman: bool) -> None:
    """Interrupt a process and what it started, and kill them after a grace period; nothing if it has ended."""
    try:
        if process.stdin is not None:
            with suppress(OSError):  # what is still to be written has no reader any more
                process.stdin.close()
        elif process.poll() is not None:
            return
        elif is_podman:
            process.send_signal(signal.SIGHUP)  # Buildah's handler, which ends the step; its helpers must not get it
        else:
            os.killpg(process.pid, signal.SIGINT)
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
