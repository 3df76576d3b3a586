"""One build: a context in a folder of its own, the docker command, its progress, its end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory
from typing import IO

from skyward.build.command import BuildCommand, find_command
from skyward.build.failure import build_failure
from skyward.build.folders import FolderServer
from skyward.build.progress import Progress
from skyward.build.runner import runner_files
from skyward.build.site import read_site, site_script, without_folders
from skyward.build.store import Report
from skyward.errors import EngineError
from skyward.image import Plan

_QUIET_S = 0.3
_GRACE_S = 5.0  # the CLI's time to tell the engine that the build is off
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def build(plan: Plan, report: Report, docker_host: str | None) -> None:
    """Build a plan's image on the engine at `docker_host`; nothing of the build is left on this machine.

    Raises:
        BuildError: a step failed, or the engine went away.
        ImageNotFoundError: the builder cannot get the base.
        EngineError: no docker command here can build.
        ConfigError: this machine's settings for package sources are wrong.
    """
    command = find_command()
    site = read_site()
    local = _is_here(docker_host)
    if not local:
        site = without_folders(site)
    with TemporaryDirectory(prefix="skyward-build-") as folder, FolderServer() as server:
        place = Path(folder)
        _write_context(place / "context", plan)
        secret = place / "site.sh"
        secret.touch(mode=0o600)
        secret.write_text(site_script(site, plan, server.url), encoding="utf-8")
        progress = Progress(plan, report)
        code = _run(_words(command, plan, place), _environment(command, docker_host), progress)
    if code:
        raise build_failure(plan, progress, code)


def _is_here(docker_host: str | None) -> bool:
    """Whether the engine's host network is this machine's."""
    return not docker_host or docker_host.startswith(("unix://", "npipe://", "tcp://127.", "tcp://localhost"))


def _write_context(folder: Path, plan: Plan) -> None:
    files = {"Dockerfile": plan.dockerfile.encode()}
    files |= {path: text.encode() for path, text in plan.files}
    files |= {f"runner/{path}": content for path, content in runner_files()}
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o644)


def _words(command: BuildCommand, plan: Plan, place: Path) -> list[str]:
    # the engine's own builder: others know neither its images nor its network
    words = [*command.words, *(("--builder", "default", "--load") if command.is_buildx else ())]
    words += ["--progress=plain", "--network=host", "--platform", plan.platform, "--tag", plan.tag]
    words += ["--secret", f"id=skyward_site,src={place / 'site.sh'}"]
    for name, value in plan.build_args:
        words += ["--build-arg", f"{name}={value}"]
    for name in (*_PROXIES, *map(str.lower, _PROXIES)):
        if os.environ.get(name):
            words += ["--build-arg", name]  # the value comes from the environment; predefined ones leave no trace
    return [*words, str(place / "context")]


def _environment(command: BuildCommand, docker_host: str | None) -> dict[str, str]:
    environment = {**os.environ, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    environment |= {"DOCKER_HOST": docker_host} if docker_host else {}
    return environment | ({} if command.is_buildx else {"DOCKER_BUILDKIT": "1"})


def _run(words: list[str], environment: dict[str, str], progress: Progress) -> int:
    """Run a command to its end, its output followed line by line.

    It has a session of its own, so that Ctrl-C reaches it through us only, after which nothing of it is left.
    """
    try:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(f"The docker command {words[0]!r} could not be started: {error}.") from error
    assert process.stdout
    with process.stdout:
        try:
            _follow(process.stdout, progress)
            return process.wait()
        finally:
            if process.poll() is None:
                _end(process)


def _follow(output: IO[bytes], progress: Progress) -> None:
    """Feed lines as they come, and tell when none has come for a moment: a silent step is then known to run."""
    rest = b""
    with DefaultSelector() as ready:
        ready.register(output, EVENT_READ)
        while True:
            if not ready.select(_QUIET_S):
                progress.quiet()
                ready.select()
            chunk = os.read(output.fileno(), 1 << 16)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines if chunk else [rest]:
                progress.feed(line.decode(errors="replace").rstrip("\r"))
            if not chunk:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and what it started to stop, and after a grace end them."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
