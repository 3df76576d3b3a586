"""Values (`sky.save`) and files (the output directory) that programs save with the record of their run.

A value is a file in the run's directory, in a format that is clear from its suffix and cannot hold code: `.json`,
`.bin` for bytes, `.npy` for a NumPy array. Readers therefore need not trust the machine that wrote it.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError, PoolError
from skyward.model.instance import ENV_VAR
from skyward.records.run import run_of_process

SUFFIXES = (".json", ".bin", ".npy")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def save(name: str, value: Any) -> None:
    """Save a value under a name with the record of this program's run; `skyward result RUN` shows and fetches it.

    A program that was not started by `skyward run` has a record as well. A later value under the same name replaces the
    earlier one. Call it in the program itself: functions on nodes return their results.

    Args:
        name: letters, digits, "_", "-" and "."; begins with a letter or digit.
        value: JSON-compatible data (tuples become lists), NumPy numbers, bytes, or a NumPy array of numbers.

    Raises:
        ConfigError: the name or the value is none of these, or it cannot be written to disk.
        PoolError: this process is a node.
    """
    if not isinstance(name, str):
        raise ConfigError(f"The first argument of sky.save is a name, as in sky.save('accuracy', 0.9); found {name!r}.")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"Names for sky.save consist of letters, digits and _-. and begin with a letter or digit; found {name!r}."
        )
    folder = _folder("saved", "sky.save")
    suffix, data = _encoded(name, value)
    try:
        draft = folder / f".{name}.{os.getpid()}.{secrets.token_hex(2)}"
        draft.write_bytes(data)
        draft.chmod(0o600)
        draft.replace(folder / f"{name}{suffix}")
        for other in SUFFIXES:
            if other != suffix:
                (folder / f"{name}{other}").unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"sky.save cannot write {name!r} to {folder}: {error}.") from error


def output_folder() -> Path:
    """Return a directory for files that this program produces; `skyward result RUN --into DIR` fetches them.

    It is part of the run's record, and accessible only to this user.

    Raises:
        ConfigError: it cannot be created.
        PoolError: this process is a node.
    """
    return _folder("files", "sky.output_folder")


def _folder(name: str, function: str) -> Path:
    if ENV_VAR in os.environ:
        raise PoolError(
            f"{function} keeps what the program has, and was called in a function on a node. Return the value, and "
            "keep it in the program."
        )
    try:
        folder = run_of_process() / name
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{function}: the record of this run cannot be written: {error}.") from error
    return folder


def _encoded(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes | bytearray | memoryview):
        return ".bin", bytes(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None):
        import numpy as np

        file = io.BytesIO()
        try:
            np.save(file, value, allow_pickle=False)
        except ValueError as error:
            raise ConfigError(
                f"sky.save cannot store arrays of objects, only of numbers; {name!r} is one: {error}."
            ) from error
        return ".npy", file.getvalue()
    try:
        return ".json", (json.dumps(value, default=_plain, ensure_ascii=False) + "\n").encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"sky.save stores JSON values, bytes and arrays; {name!r} is a {type(value).__name__} "
            f"({error}). Write it to a file in sky.output_folder()."
        ) from error


def _plain(value: Any) -> Any:
    """Convert NumPy numbers, and tensors with one element, to Python numbers."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is in it")
