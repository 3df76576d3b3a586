"""Clients that end at one of their provider's calls, for the crash sweeps.

One process imports skyward once and forks the clients, a few at a time: a fork is ready in a hundredth of the time that
a new interpreter takes, and has opened nothing either.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

AT_ONCE = 3  # clients, which know nothing of each other


class Ended(NamedTuple):
    """A client that has ended.

    Attributes:
        call: number of the call at which it was to end.
        status: as `subprocess` has it, -9 for SIGKILL.
    """

    call: int
    pool: str
    status: int


def clients(program: str, when: str, status: int, **env: str) -> Iterator[Ended]:
    """Run a program that calls `end_at_each`; each client as soon as it has ended, which must be with this status."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", program, when],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, **env},
        )
        with process:
            assert process.stdout
            try:
                for line in process.stdout:
                    ended = Ended(*json.loads(line))
                    assert ended.status == status, f"call {ended.call} was never made, or failed: {_read(said)}"
                    yield ended
            finally:
                process.kill()
        assert process.returncode in (0, -signal.SIGKILL), _read(said)


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def end_at_each(calls: Sequence[tuple[Any, str]], when: str, run: Callable[[Callable[[str], None]], None]) -> None:
    """Fork a client for each call, which ends at the first of its kind; tell of each on standard output.

    Args:
        calls: owners and names.
        when: "before" or "after" the call, by SIGKILL; "in" it, by Ctrl-C.
        run: what a client does; it is given a function to tell the id of its pool.
    """
    waiting, running = list(range(len(calls))), dict[int, tuple[int, int]]()
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number = waiting.pop(0)
            ours, theirs = os.pipe()
            if (pid := os.fork()) == 0:
                os.close(ours)
                die_at(*calls[number], when)
                run(lambda pool, pipe=theirs: _tell(pipe, pool))  # type: ignore[misc]
                os._exit(0)  # an interrupt does not come here: it ends the process as it ends any program
            os.close(theirs)
            running[pid] = number, ours
        pid, status = os.wait()
        number, ours = running.pop(pid)
        with os.fdopen(ours) as pipe:
            print(json.dumps([number, pipe.read(), os.waitstatus_to_exitcode(status)]), flush=True)


def _tell(pipe: int, pool: str) -> None:
    os.write(pipe, pool.encode())
    os.close(pipe)  # what the client starts must not keep it open


def die_at(owner: Any, name: str, when: str) -> None:
    """Have this process end at the first call of `owner.name`: by SIGKILL "before" or "after" it, by Ctrl-C "in" it."""
    original, calls = getattr(owner, name), itertools.count()

    def call(*given: Any, **more: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        elif when == "in" and next(calls) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        result = original(*given, **more)
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)
