"""The docker command that builds: its selection, and its process, here or on another machine.

BuildKit is part of Docker's engine. Podman's command takes the same arguments.

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
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO

from skyward.builder.docker.output import Progress
from skyward.builder.files.ignore import Ignore
from skyward.builder.registry.auth import Logins, with_logins
from skyward.errors import EngineError, EngineMissingError
from skyward.image import TIME
from skyward.model.ssh import SshHost

_PODMANS = ("podman ", "buildah ")  # first words of its version output
_QUIET_S = 0.3
_SILENCE_S = 3.0  # silence of a command before its engine is checked
_GRACE_S = 5.0  # time for the command to cancel the build on the engine
UNREACHED = 255  # ssh's own exit status if it failed, rather than the command
_SCRIPT = Path(__file__).with_name("remote.sh")


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """The first words of a build command, whether it is Podman's, and its version in its own words."""

    words: tuple[str, ...]
    is_podman: bool
    version: str


@dataclass(frozen=True, slots=True)
class Folders:
    """The build context of a build, and its Dockerfile if that is elsewhere."""

    context: Path
    file: Path | None = None

    @property
    def words(self) -> list[str]:
        """Options for a build command on this machine."""
        return [*(("--file", str(self.file)) if self.file else ()), str(self.context)]

    def pack(self, tar: tarfile.TarFile) -> list[str]:
        """Add them to an archive, and return the options for a build command in the unpacked folder."""
        rules = self.context / ".dockerignore"
        lines = rules.read_text(encoding="utf-8-sig").splitlines() if rules.is_file() else []
        ignored = Ignore([line for line in lines if not line.startswith("#")])

        def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            path = member.name.removeprefix("context").lstrip("/")
            left_out = path and ignored(path) and not (member.isdir() and ignored.has_exceptions)
            return None if left_out else _anonymous(member)

        tar.add(self.context, "context", filter=wanted if self.file else _anonymous)
        if not self.file:
            return ["context"]
        tar.add(self.file, "Dockerfile", filter=_anonymous)
        return ["--file", "Dockerfile", "context"]


def find_command(environ: Mapping[str, str] = os.environ, docker_host: str | None = None) -> BuildCommand:
    """Return the docker command that builds on an engine with BuildKit, or Podman's.

    If SKYWARD_DOCKER_CLI is set, only that command is tried; else `docker`, /usr/bin/docker and `podman`.

    Args:
        environ: environment variables.
        docker_host: address of the engine; None for the command's default.

    Raises:
        EngineError: none of them can build.
    """
    chosen = environ.get("SKYWARD_DOCKER_CLI")
    seen: list[str] = []
    for name in [chosen] if chosen else ("docker", "/usr/bin/docker", "podman"):
        cli = shutil.which(name, path=environ.get("PATH")) or name
        said = answer(cli, "--version").strip()
        if said.startswith(_PODMANS):  # also under docker's name, from the package podman-docker
            return BuildCommand(_podman_words(cli, docker_host), is_podman=True, version=said)
        version = re.search(r"version (\d+)\.", said)
        # up to 22 the command leads to the engine's own BuildKit; from 23 on it is the plugin buildx that does
        if version and (int(version[1]) < 23 or answer(cli, "buildx", "version")):
            return BuildCommand(
                (cli, "build", "--build-arg", f"SOURCE_DATE_EPOCH={TIME}"), is_podman=False, version=said
            )
        seen.append(f"{cli} ({f'version {version[1]}, without buildx' if version else 'does not run'})")
    raise EngineError(
        f"Building an image needs the docker command with its buildx plugin. Tried: {', '.join(seen)}. Install "
        "buildx (the package docker-buildx of Debian and Ubuntu, docker-buildx-plugin of Docker), or point "
        "SKYWARD_DOCKER_CLI to a docker that has it, or to podman."
    )


def _podman_words(podman: str, docker_host: str | None) -> tuple[str, ...]:
    """Return Podman's build command: local if it shares its store with the engine, else through the engine's socket."""
    store = ("info", "--format", "{{.Store.GraphRoot}}")
    there = ("--remote", "--url", docker_host) if docker_host else ()
    is_own = not there or answer(podman, *store) == answer(podman, *there, *store) != ""
    # engines and registries must report the same about an image as with Docker's builder
    return (podman, *(() if is_own else there), "build", "--format=docker")


def answer(*words: str) -> str:
    """Return the output of a command; empty if it fails or cannot be started."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def run(
    words: Sequence[str],
    progress: Progress,
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
            _end(process, signal.SIGHUP if is_podman else signal.SIGINT, grace_s)


def _write(source: IO[bytes], stdin: IO[bytes]) -> None:
    # a command that ends early closes its side, and reports the reason on its output
    with suppress(OSError, ValueError):
        shutil.copyfileobj(source, stdin, 1 << 18)
        stdin.flush()


def _follow(output: IO[bytes], progress: Progress, alive: Callable[[], object] | None) -> None:
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


def _end(process: subprocess.Popen[bytes], interrupt: signal.Signals, grace_s: float) -> None:
    """Interrupt a process and its children, and kill them after a grace period; do nothing if it has ended."""
    try:
        if process.stdin is not None:
            with suppress(OSError):  # the remaining input has no reader
                process.stdin.close()
        elif process.poll() is not None:
            return
        elif interrupt == signal.SIGHUP:
            process.send_signal(interrupt)  # Buildah's handler ends the step; its helpers must not receive it
        else:
            os.killpg(process.pid, interrupt)
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
    given: Folders,
    *,
    secrets: Mapping[str, bytes] = MappingProxyType({}),
    logins: Logins = MappingProxyType({}),
) -> int:
    """Send a build context to a machine and run the docker build there with these options.

    Returns the exit status: the build's, or 255 if SSH failed.

    Args:
        host: the machine.
        words: options of the build.
        progress: receives its output.
        given: the context to send, and its Dockerfile.
        secrets: sent with it and passed to the build, without a named file on this machine's disk.
        logins: registry logins for the docker command there, in addition to those of its own user.

    Raises:
        EngineMissingError: the machine cannot be reached, or nothing there can build.
    """
    words = ["--build-arg", f"SOURCE_DATE_EPOCH={TIME}", *words]
    with TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name, value in secrets.items():
                _add_secret(tar, f"secrets/{name}", value)
                words += ["--secret", f"id={name},type=file,src=secrets/{name}"]
            if logins:
                _add_secret(tar, "login/config.json", json.dumps(with_logins({}, logins)).encode())
            words += given.pack(tar)
        size = packed.tell()
        packed.seek(0)
        command = host.command("sh", "-c", _SCRIPT.read_text(), "sh", str(size), *words)
        code = run(command, progress, folder=given.context, environment=os.environ, stdin=packed)
    if code in (UNREACHED, 127):
        failure = host.failure(progress.ending)
        if failure:
            raise failure
    return code


def _add_secret(tar: tarfile.TarFile, name: str, value: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.size = 0o600, len(value)
    tar.addfile(member, BytesIO(value))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
