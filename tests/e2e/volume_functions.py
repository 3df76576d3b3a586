"""Functions that use a pool's volumes; a module without pytest, since nodes have none to import."""

from __future__ import annotations

import os
from pathlib import Path

import skyward as sky


@sky.compute
def read(path: str) -> str:
    return Path(path).read_text()


@sky.compute
def names(path: str) -> list[str]:
    return sorted(each.name for each in Path(path).iterdir())


@sky.compute
def write(path: str, text: str) -> None:
    Path(path).write_text(text)


@sky.compute
def write_and_read(path: str, text: str) -> str:
    """Through one open file, as libraries of tables and arrays do."""
    with Path(path).open("w+") as file:
        file.write(text)
        file.seek(0)
        return file.read()


@sky.compute
def variables() -> list[str]:
    return sorted(os.environ)
