"""The process of a build command: its output line by line, its input, and its end with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from shutil import copyfileobj
from typing import IO, Protocol

from skyward.errors import EngineError, EngineMissingError

_QUIET_S = 0.3
_SILENCE_S = 3.0  # of a command, before its engine is asked whether it is there
_GRACE_S = 5.0  # the command's time to tell the engine that the build is off


class Listener(Protocol):
    """A reader of a command's output."""

    def feed(self, line: str) -> None:
        """Process one line."""
        ...

    def quiet(self) -> None:
        """The command has printed nothing for a moment."""
        ...


def run(
    words: Sequence[str],
    progress: Listener,
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


def _follow(output: IO[bytes], progress: Listener, alive: Callable[[], object] | None) -> None:
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
