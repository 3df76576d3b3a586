"""A build command as a process: followed line by line, given what it reads, ended with all it started."""

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
    """What follows a command's output."""

    def feed(self, line: str) -> None:
        """Take one line."""
        ...

    def quiet(self) -> None:
        """Nothing has come for a moment."""
        ...


def run(
    words: Sequence[str],
    progress: Listener,
    *,
    folder: Path,
    environment: Mapping[str, str],
    feed: IO[bytes] | None = None,
    alive: Callable[[], object] | None = None,
) -> int:
    """Run a command to its end and return its exit status; its output goes to `progress`.

    It has a session of its own, so that Ctrl-C reaches it through us only, after which nothing of it is left.

    Args:
        words: the command.
        progress: gets its lines.
        folder: its working directory.
        environment: its environment.
        feed: what it reads. Its standard input then stays open, so that its end tells the command to stop.
        alive: called again and again while the command says nothing; what it raises ends the command.

    Raises:
        EngineError: it could not be started.
    """
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
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
            if feed is not None and process.stdin is not None:
                threading.Thread(target=_give, args=(feed, process.stdin), name="skyward-context", daemon=True).start()
            _follow(process.stdout, progress, alive)
            return process.wait()
        except EngineMissingError:
            grace_s = 0.0  # there is nobody to be told that the build is off
            raise
        finally:
            _end(process, grace_s)


def _give(feed: IO[bytes], stdin: IO[bytes]) -> None:
    # a command that ends early closes its side, and says why on its output
    with suppress(OSError, ValueError):
        copyfileobj(feed, stdin, 1 << 18)
        stdin.flush()


def _follow(output: IO[bytes], progress: Listener, alive: Callable[[], object] | None) -> None:
    """Feed lines as they come, and tell when none has come for a moment: a silent step is then known to run."""
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


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask a process and what it started to stop, and after a grace end them; nothing if it has ended."""
    try:
        if process.stdin is not None:
            with suppress(OSError):  # what is still to be written has no reader any more
                process.stdin.close()
        elif process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
