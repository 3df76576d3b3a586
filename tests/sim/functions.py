"""What the calls of a simulation run, in simulated workers; each run is noted in the world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.sim import kernel, world


class ModelError(Exception):
    """What a function raises on purpose."""


def result(token: int, size: int = 0) -> Any:
    """What a call returns if nothing happens to it."""
    return (token * 7 + 1, b"r" * size)


def work(token: int, seconds: float, data: bytes, size: int, lines: int) -> Any:
    """Run for so long, print so many lines, return so much."""
    run = world.W.begins(token)
    _print(token, run, lines)
    kernel.K.sleep(seconds)
    world.W.ends(token, run)
    return result(token, size)


def hold(token: int, seconds: float) -> Any:
    """Run for so long in C code that holds the interpreter's lock: no thread of the process runs meanwhile."""
    run = world.W.begins(token)
    k = kernel.K
    process = k.current.process
    k.after(seconds, process.go_on)
    process.stop()
    k.point()
    world.W.ends(token, run)
    return result(token)


def fail(token: int, seconds: float) -> Any:
    """Raise an error."""
    run = world.W.begins(token)
    kernel.K.sleep(seconds)
    world.W.ends(token, run)
    raise ModelError(str(token))


def items(token: int, count: int, seconds: float) -> Iterator[int]:
    """Yield so many numbers."""
    run = world.W.begins(token)
    for number in range(count):
        yield token + number
        kernel.K.sleep(seconds)
    world.W.ends(token, run)


def everywhere(token: int, seconds: float, gathers: int, fails_on: tuple[int, ...], telling_s: float) -> Any:
    """Run on all ranks, which exchange values so many times; some of them may raise instead."""
    model = kernel.K.current.process.model
    model.is_telling = False
    run = world.W.begins(token, model.rank)
    generations = []
    for number in range(gathers):
        if model.rank in fails_on:
            kernel.K.sleep(seconds if telling_s else 0.0)
            _fail(token, run, 0.0 if model.rank == fails_on[0] else telling_s)
        kernel.K.sleep(seconds * (1 + model.rank))
        values = model.worker._requests.gather((token, model.rank, model.generation), f"g{number}", None)
        generations.append(tuple(values))
    kernel.K.sleep(seconds)
    world.W.ends(token, run)
    return (token, model.rank, tuple(generations))


def together(token: int, seconds: float, gathers: int, fails_on: tuple[int, ...], telling_s: float) -> Any:
    """The same, of a group that fails as one."""
    return everywhere(token, seconds, gathers, fails_on, telling_s)


def _fail(token: int, run: int, telling_s: float) -> None:
    """Raise an error, which takes so long to be put into words as that of a long trace."""
    world.W.fails(token, run)
    kernel.K.current.process.model.is_telling = True
    kernel.K.sleep(telling_s)
    raise ModelError(str(token))


def _print(token: int, run: int, lines: int) -> None:
    model = kernel.K.current.process.model
    for number in range(lines):
        call = model.worker._current()[0]
        model.worker.write(call, "stdout", f"L {token} {run} {number}\n")
