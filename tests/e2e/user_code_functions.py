"""Functions that put the process they run in to the test; nodes import this module, which has no pytest."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skyward as sky


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception that nobody can change."""

    code: int


@dataclass(frozen=True, slots=True)
class Slotted(Exception):
    """The same with slots: setting an attribute of it raises another error, a TypeError."""

    code: int


@sky.compute
def fail(error: Exception) -> None:
    raise error


@sky.compute
@sky.silent
def fail_in_silence(error: Exception) -> None:
    raise error


@sky.compute
def fail_late(error: Exception) -> Iterator[int]:
    yield 1
    raise error


# forks ---------------------------------------------------------------------------------------------------------------


@sky.compute
def fork_and_return(number: int) -> tuple[int, int]:
    """Both processes return; the parent tells the status of the child."""
    child = os.fork()
    if child == 0:
        return (number, -1)
    return (number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@sky.compute
def fork_and_raise(error: BaseException | None) -> int:
    """The child prints, and returns or raises; its status."""
    child = os.fork()
    if child == 0:
        print("from the child")
        if error is not None:
            raise error
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@sky.compute
def fork_in_generator() -> Iterator[int]:
    """Both processes go on."""
    yield 1
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    yield 2
    yield 3


# code that runs anywhere in other code ------------------------------------------------------------------------------


@contextmanager
def _interrupting(how: str, tick: Callable[..., object]) -> Iterator[Callable[[], object]]:
    """Let `tick` run in the midst of other code; yields what makes occasions for it."""
    thresholds = gc.get_threshold()

    def leave_garbage() -> None:
        node = type("Node", (), {"__del__": tick} if how == "destructor" else {})()
        node.itself = node
        if how == "weak reference":
            weakref.finalize(node, tick).atexit = False

    def trace(*_: object) -> Any:
        tick()
        return trace

    gc.set_threshold(20)
    if how == "signal":
        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    elif how == "collector":
        gc.callbacks.append(tick)
    elif how == "tracer":
        sys.settrace(trace)
    elif how == "profiler":
        sys.setprofile(trace)
    try:
        yield leave_garbage if how in ("destructor", "weak reference") else list
    finally:
        if how == "signal":
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        elif how == "collector":
            gc.callbacks.remove(tick)
        sys.settrace(None)
        sys.setprofile(None)
        gc.set_threshold(*thresholds)
        gc.collect()


@sky.compute
def speaks_while_it_speaks(how: str, by: str, seconds: float) -> tuple[int, int]:
    """The numbers of lines and of ticks that were printed or logged."""
    say = print if by == "print" else logging.getLogger("tests").warning
    lines, ticks = 0, []

    def tick(*_: object) -> None:
        say("(tick)")
        ticks.append(1)

    end = time.monotonic() + seconds
    with _interrupting(how, tick) as invite:
        while time.monotonic() < end:
            invite()
            say("(line)")
            lines += 1
    return lines, len(ticks)


@sky.compute
def is_torn_out_of_its_prints(times: int) -> int:
    """How often an alarm has ended a loop that prints."""

    def ring(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, ring)
    torn = 0
    for number in range(times):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + number % 10 * 0.0001)
            while True:
                print("(line)")
        except TimeoutError:
            torn += 1
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return torn


# a node that is told to end ----------------------------------------------------------------------------------------


def _waits(path: str, how: str) -> str:
    """Notes its agent in a file, then does not end by itself; from the second run on it does."""
    with Path(path).open("a+", encoding="ascii") as file:
        file.write(f"{os.getppid()}\n")
    if len(Path(path).read_text().splitlines()) > 1:
        return "done"
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        if how == "returns":
            return "half done"
        if how == "raises":
            raise RuntimeError("cannot go on") from None
        raise
    return "slept"


waits = sky.compute(_waits)
waits_again = sky.compute(_waits, retries=1)


@sky.compute
def adds_a_line(path: str, seconds: float) -> None:
    with Path(path).open("a", encoding="ascii") as file:
        file.write(f"{os.getppid()}\n")
    time.sleep(seconds)


# imports that are interrupted --------------------------------------------------------------------------------------


class _Stops:
    """Lets the import of numpy stop in the middle until it is interrupted."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "numpy.linalg":
            Path(self._path).touch()
            for _ in range(6000):  # a thread is interrupted between two instructions only
                time.sleep(0.01)


@sky.compute
def half_imports(path: str) -> None:
    """Makes a file when half of numpy is imported, and waits there."""
    sys.meta_path.insert(0, _Stops(path))
    import numpy  # noqa: F401


@sky.compute
def total(numbers: list[int]) -> tuple[int, int]:
    """Their sum, by numpy, and the process."""
    import numpy as np

    return int(np.array(numbers).sum()), os.getpid()


# exceptions and results that end processes ------------------------------------------------------------------------


class Exits(Exception):
    """Ends the process that reads it, or pickles it."""

    def __str__(self) -> str:  # noqa: PLE0307 - it does not return
        sys.exit(3)

    def __reduce__(self) -> tuple[object, ...]:
        sys.exit(4)


class ExitsInPrograms:
    """Ends the process that unpickles it, unless that is a node."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("import os, sys\nif 'COMPUTE_POOL' not in os.environ: sys.exit(5)",)


@sky.compute
def raises_what_exits() -> None:
    raise Exits


@sky.compute
def returns_what_exits() -> object:
    return ExitsInPrograms()


@sky.compute
def yields_what_exits() -> Iterator[object]:
    yield ExitsInPrograms()
