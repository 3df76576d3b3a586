"""Functions that the tests of journals call; each call notes its item in a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import skyward as sky


def note(folder: str, item: Any) -> None:
    with open(Path(folder) / "calls", "a") as file:
        file.write(f"{item!r}\n")


@sky.compute
def double(task: tuple[str, Any]) -> Any:
    folder, item = task
    note(folder, item)
    return item * 2


@sky.compute
def fragile(task: tuple[str, int]) -> int:
    """Fails for 5 while there is a file "broken"."""
    folder, item = task
    if item == 5 and (Path(folder) / "broken").exists():
        raise ValueError("five is broken")
    note(folder, item)
    return item


def trial(*, fixed: bool) -> Callable[[tuple[str, int]], float]:
    """A version of a function, which may fail for 7."""

    def trial(task: tuple[str, int]) -> float:
        folder, item = task
        note(folder, item)
        return item / (item != 7 or fixed)

    return trial


@sky.compute
def odd(task: tuple[str, int]) -> Any:
    """What no journal can keep: a thing that cannot be pickled, or an iterator."""
    folder, item = task
    note(folder, item)
    return (n for n in range(3)) if item == 1 else threading.Lock()


@sky.compute
def numbered(item: int) -> Iterator[int]:
    yield item


@sky.compute
def where(item: Any) -> int:
    import os

    return os.getpid()


@sky.compute
def array(size: int) -> Any:
    import numpy as np

    return {"zeros": np.zeros(size), "ones": np.ones(size, dtype="i4")}
