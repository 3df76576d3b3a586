"""Functions of pools with results='data'; a module without pytest, since nodes have none to import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skyward as sky


@dataclass
class Score:
    name: str
    value: float


def ran(path: str) -> Exception:
    """Notes in which process it has run."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return ValueError("hostile")


class Hostile:
    """Runs where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return ran, (self.path,)


class HostileError(Exception):
    def __init__(self, path: str) -> None:
        super().__init__("with a sting")
        self.path = path

    def __reduce__(self) -> Any:
        return ran, (self.path,)


@sky.compute
def scores(names: list[str]) -> list[Score]:
    return [Score(name, len(name) / 2) for name in names]


@sky.compute
def place() -> sky.InstanceInfo | None:
    return sky.instance_info()


@sky.compute
def hostile(path: str) -> Any:
    return [1, Hostile(path)]


@sky.compute
def taken_over(path: str) -> Any:
    """A node whose own part of skyward is somebody else's: it sends what it likes."""
    import cloudpickle

    from skyward.wire import payload

    kept = payload.dumps

    def send(*_: Any, **__: Any) -> Any:
        payload.dumps = kept
        return cloudpickle.dumps(Hostile(path)), []

    payload.dumps = send
    return 1


@sky.compute
def raises(path: str) -> None:
    raise HostileError(path)


@sky.compute
def items(path: str) -> Iterator[Any]:
    yield Score("first", 1.0)
    yield Hostile(path)


def set_up_hostile(path: str) -> Any:
    """A plugin's hook that fails with an exception that runs code where it is unpickled."""

    def hook(*_: Any) -> None:
        raise HostileError(path)

    return hook
