"""Functions that put the process they run in to the test; nodes import this module, which has no pytest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
