"""`ensure`: the image of a plan on an engine, built if it is not there, once for all who ask at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from skyward.build.command import BuildCommand, find_command
from skyward.build.failure import build_failure
from skyward.build.folders import FolderServer
from skyward.build.progress import Progress
from skyward.build.runner import runner_files
from skyward.build.site import read_site, site_script, without_folders
from skyward.build.store import ImageStore
from skyward.errors import BuildError, EngineError
from skyward.image import Plan

_GRACE_S = 5.0  # the CLI's time to tell the engine that the build is off
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def ensure(plan: Plan, store: ImageStore, report: Callable[[str], None], *, docker_host: str | None = None) -> str:
    """Make the engine have the image of a plan, and return its tag.

    Args:
        plan: from `plan_for`.
        store: the images of the engine.
        report: takes lines of progress.
        docker_host: address of that engine, as DOCKER_HOST has it; None for what the docker command takes by itself.

    Raises:
        BuildError: the build failed.
        ImageNotFoundError: the builder cannot get the base.
        EngineError: no docker command here can build.
        ConfigError: this machine's settings for package sources are wrong.
    """
    if store.inspect(plan.tag) is not None:
        return plan.tag
    with _single_flight(plan, report):
        if store.inspect(plan.tag) is None:
            started = perf_counter()
            report(f"building {plan.tag} from {plan.base}")
            _build(plan, report, docker_host or os.environ.get("DOCKER_HOST"))
            if store.inspect(plan.tag) is None:
                raise BuildError(
                    f"The build of {plan.tag} ended well, but the engine does not have the image. The docker command "
                    f"and skyward may use different engines: docker_host is {docker_host!r}; set DOCKER_HOST for both."
                )
            report(f"built {plan.tag} in {perf_counter() - started:.1f} s")
    return plan.tag


@contextmanager
def _single_flight(plan: Plan, report: Callable[[str], None]) -> Iterator[None]:
    """Let one process of this user build an image; the others wait for it."""
    from filelock import FileLock, Timeout
    from platformdirs import user_cache_path

    lock = FileLock(user_cache_path("skyward", ensure_exists=True) / f"build-{plan.identity[:32]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"another process builds {plan.tag}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(plan: Plan, report: Callable[[str], None], docker_host: str | None) -> None:
    """Run the build command in a folder of its own, which is gone afterwards."""
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
        code = _run(_words(command, plan, place), _environment(command, docker_host), progress.feed)
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


def _run(words: list[str], environment: dict[str, str], take: Callable[[str], None]) -> int:
    """Run a command to its end, giving away its output line by line.

    It has a session of its own, so that Ctrl-C reaches it through us only, after which nothing of it is left.
    """
    try:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(f"The docker command {words[0]!r} could not be started: {error}.") from error
    assert process.stdout
    with process.stdout:
        try:
            for line in process.stdout:
                take(line.rstrip("\r\n"))
            return process.wait()
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
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
