"""The docker command that builds: its selection, the capabilities of its builder, and its process, here or remote.

BuildKit is part of Docker's engine, Buildah of Podman. Old docker commands do not report BuildKit's version; it is then
derived from the engine's (https://docs.docker.com/engine/release-notes/).

The output of a process is followed line by line, and it is terminated with all its children. For a build on another
machine, context and secrets are sent over SSH, and that machine's docker command builds. Nothing is installed there,
and only the image remains: the folder is private to the user and removed with the build. If the script there is killed,
its lock is released, and the next build removes the folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO, Any

from skyward.builder.docker.output import BuildahProgress, Progress
from skyward.builder.registry.auth import Logins, with_logins
from skyward.errors import EngineError, EngineMissingError
from skyward.image import TIME
from skyward.model.ssh import SshHost

_PODMANS = ("podman ", "buildah ")  # first words of its version output
Version = tuple[int, int]
# minimum versions; pushing images with zstd, and whole caches, require a store in containerd
_BUILDKIT: Mapping[str, Version] = {
    "secrets": (0, 6),
    "cache mounts": (0, 8),
    "COPY --link": (0, 10),
    "rewrite-timestamp": (0, 13),
}
_BUILDAH: Mapping[str, Version] = {
    "secrets": (1, 23),
    "cache mounts": (1, 24),
    "COPY --link": (1, 41),
    "rewrite-timestamp": (1, 41),
}
_IN_CONTAINERD = ("cache export", "zstd")
_OF_ENGINES: Mapping[int, Version] = {20: (0, 8), 23: (0, 10), 24: (0, 11), 25: (0, 12), 26: (0, 13), 27: (0, 14)}
_QUIET_S = 0.3
_SILENCE_S = 3.0  # silence of a command before its engine is checked
_GRACE_S = 5.0  # time for the command to cancel the build on the engine
UNREACHED = 255  # ssh's own exit status if it failed, rather than the command
# The folder is sent as a tar of known length, after which the input stays open: its end means that the client is gone.
# The command is selected as in `find_command`. Proxies are those of that machine.
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


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """The first words of a build command, and its kind: buildx's, Podman's, or else an old docker command's."""

    words: tuple[str, ...]
    is_buildx: bool = False
    is_podman: bool = False


def find_command(environ: Mapping[str, str] = os.environ, docker_host: str | None = None) -> BuildCommand:
    """Return a docker CLI with buildx, or one old enough to use the engine's own BuildKit; for Podman's engine, podman.

    If SKYWARD_DOCKER_CLI is set, only that command is tried; else every `docker` on PATH, and /usr/bin/docker.

    Args:
        environ: environment variables.
        docker_host: address of the engine; None for the command's default.

    Raises:
        EngineError: none of them can build.
    """
    chosen = environ.get("SKYWARD_DOCKER_CLI")
    clis = [chosen] if chosen else _candidates(environ.get("PATH", ""))
    if not chosen and (podman := _podman_instead(clis, environ, docker_host)):
        clis = [podman]
    seen: list[str] = []
    for cli in clis:
        said = answer(cli, "buildx", "version")
        if said and not said.startswith(_PODMANS):
            # the engine's own builder, as others have neither its images nor its network; one time for all images, so
            # that two clean builds have the same digest
            options = f"--builder default --load --build-arg SOURCE_DATE_EPOCH={TIME}".split()
            return BuildCommand((cli, "buildx", "build", *options), is_buildx=True)
    for cli in clis:
        said = answer(cli, "--version")
        if said.startswith(_PODMANS):  # also under docker's name, from the package podman-docker
            return BuildCommand(_podman_words(cli, docker_host), is_podman=True)
        version = re.search(r"version (\d+)\.", said)
        # from 23 on, `docker build` is buildx or the legacy builder, which supports no mounts
        if version and int(version[1]) < 23:
            return BuildCommand((cli, "build"))
        seen.append(f"{cli} ({f'version {version[1]}, without buildx' if version else 'does not run'})")
    found = f"Found: {', '.join(seen)}." if seen else "No docker command was found on PATH."
    raise EngineError(
        f"Building an image takes the docker command with its buildx plugin. {found} Install buildx (the package "
        "docker-buildx of Debian and Ubuntu, docker-buildx-plugin of Docker), or point SKYWARD_DOCKER_CLI to a docker "
        "that has it. With Podman's engine, install podman."
    )


def _podman_instead(clis: list[str], environ: Mapping[str, str], docker_host: str | None) -> str | None:
    """Return Podman's command if there is no docker command, or if the engine is Podman's.

    Docker's command cannot build there (https://github.com/containers/podman/issues/17836).
    """
    podman = shutil.which("podman", path=environ.get("PATH", ""))
    if podman is None or not clis:
        return podman
    asked = ("version", "--format", "{{range .Server.Components}}{{.Name}};{{end}}")
    where = ("--host", docker_host) if docker_host else ()
    return podman if "Podman" in answer(clis[0], *where, *asked) else None


def _podman_words(podman: str, docker_host: str | None) -> tuple[str, ...]:
    """Return Podman's build command: local if it shares its store with the engine, else through the engine's socket."""
    store = ("info", "--format", "{{.Store.GraphRoot}}")
    there = ("--remote", "--url", docker_host) if docker_host else ()
    is_own = not there or answer(podman, *store) == answer(podman, *there, *store) != ""
    # engines and registries must report the same about an image as with Docker's builder
    return (podman, *(() if is_own else there), "build", "--format=docker")


def _candidates(path: str) -> list[str]:
    found = [shutil.which("docker", path=folder) for folder in [*path.split(os.pathsep), "/usr/bin"] if folder]
    return list(dict.fromkeys(cli for cli in found if cli))


def answer(*words: str) -> str:
    """Return the output of a command; empty if it fails or cannot be started."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """The builder of an image.

    Attributes:
        name: "BuildKit" or "Buildah".
        version: its version, as far as known: "0.13.1", or "0.8" as derived from the engine's.
        command: the command that starts it.
        can: its capabilities, of the names above.
        cannot: the capabilities it lacks.
    """

    name: str
    version: str
    command: str
    can: tuple[str, ...]
    cannot: tuple[str, ...]


def find_builder(
    engine: str, *, in_containerd: bool, docker_host: str | None, environ: Mapping[str, str] = os.environ
) -> Builder:
    """Return the builder for an engine.

    Args:
        engine: version of the engine.
        in_containerd: whether it keeps its images in containerd.
        docker_host: its address.
        environ: environment variables.

    Raises:
        EngineError: no command here can build on it.
    """
    command = find_command(environ, docker_host)
    cli = command.words[0]
    if command.is_podman:
        said = answer(cli, "info", "--format", "{{.Host.BuildahVersion}}").strip()
        return _builder("Buildah", said, cli, _BUILDAH, ())
    where = ("--host", docker_host) if docker_host else ()
    said = answer(cli, *where, "buildx", "inspect", "default") if command.is_buildx else ""
    told = re.search(r"buildkit(?: version)?:\s*v(\S+)", said, re.IGNORECASE)
    return _builder("BuildKit", told[1] if told else _of_engine(engine), cli, _BUILDKIT, _IN_CONTAINERD * in_containerd)


def _builder(name: str, version: str, command: str, known: Mapping[str, Version], more: tuple[str, ...]) -> Builder:
    numbers = _numbers(version)
    can = (*(what for what, since in known.items() if numbers >= since), *more)
    cannot = tuple(what for what in (*known, *_IN_CONTAINERD) if what not in can)
    return Builder(name=name, version=version or "of unknown version", command=command, can=can, cannot=cannot)


def _of_engine(engine: str) -> str:
    major = _numbers(engine)[0]
    fitting = [version for since, version in _OF_ENGINES.items() if since <= major]
    return ".".join(map(str, fitting[-1])) if fitting else ""


def _numbers(version: str) -> Version:
    found = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return (found[0], found[1]) if len(found) == 2 else (0, 0)


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

    It runs in its own session, so that Ctrl-C reaches it only through this process, which then terminates all of it.

    Args:
        words: the command.
        progress: receives its lines.
        folder: its working directory.
        environment: its environment.
        stdin: its input, which stays open afterwards; closing it stops the command.
        alive: called repeatedly while the command is silent; its exceptions end the command.
        is_podman: whether it is Podman's command, which on SIGINT ends at once and leaves the step running.

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
            grace_s = 0.0  # there is no engine on which to cancel the build
            raise
        finally:
            _end(process, grace_s, is_podman=is_podman)


def _write(source: IO[bytes], stdin: IO[bytes]) -> None:
    # a command that ends early closes its side, and reports the reason on its output
    with suppress(OSError, ValueError):
        shutil.copyfileobj(source, stdin, 1 << 18)
        stdin.flush()


def _follow(output: IO[bytes], progress: Progress | BuildahProgress, alive: Callable[[], object] | None) -> None:
    """Pass on lines as they arrive, and report short silences, which show that a silent step is running."""
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
    """Interrupt a process and its children, and kill them after a grace period; do nothing if it has ended."""
    try:
        if process.stdin is not None:
            with suppress(OSError):  # the remaining input has no reader
                process.stdin.close()
        elif process.poll() is not None:
            return
        elif is_podman:
            process.send_signal(signal.SIGHUP)  # Buildah's handler ends the step; its helpers must not receive it
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
    """Send a folder to a machine and run the docker build of its directory `context` there with these options.

    Paths in the options are relative to the folder. Returns the exit status: the build's, or 255 if SSH failed.

    Args:
        host: the machine.
        words: options of the build.
        progress: receives its output.
        folder: the folder to send.
        secrets: sent with it and passed to the build, without a named file on this machine's disk.
        logins: registry logins for the docker command there, in addition to those of its own user.
        forward: a port of that machine that leads to one of this machine during the build, as ssh's option -R.

    Raises:
        EngineMissingError: the machine cannot be reached, or nothing there can build.
        EngineError: it does not forward ports.
    """
    options: tuple[str, ...] = ()
    given: list[str] = []
    if forward:  # a separate connection, as a shared one would keep the port
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
    """Return the configuration of the docker command on a machine."""
    words = host.command("sh", "-c", 'cat "${DOCKER_CONFIG:-$HOME/.docker}/config.json"')
    done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    try:
        found = json.loads(done.stdout)
    except ValueError:  # missing, or damaged, and the docker command there would continue without it
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
