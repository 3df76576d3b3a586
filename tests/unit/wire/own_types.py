"""Classes of a program, such as its nodes send back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

CALLED: list[str] = []  # what ran that is not to run


@dataclass
class Point:
    x: float
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        CALLED.append("__post_init__")

    def __setstate__(self, state: object) -> None:
        CALLED.append("__setstate__")

    def __setattr__(self, name: str, value: object) -> None:
        CALLED.append("__setattr__")
        object.__setattr__(self, name, value)

    @property
    def trap(self) -> int:
        return 0

    @trap.setter
    def trap(self, _: int) -> None:
        CALLED.append("trap")

    @cached_property
    def double(self) -> float:
        return 2 * self.x


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    inner: Point | None = None


@dataclass
class Guarded:
    path: str

    def __del__(self) -> None:
        CALLED.append("__del__")


class Pair(NamedTuple):
    left: int
    right: Any


class Colour(enum.Enum):
    RED = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Plain:
    """No dataclass."""
