"""The program's `__main__` in a worker: the namespace of all functions and classes that come from the client's.

A process that `multiprocessing` spawns sets up its `__main__` by the module that `__main__.__spec__` names. When it
asks for that name, the content of `__main__` is written to a file, which `skyward.runner.spawned` reads there.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType
from typing import Any

from skyward.wire import by_value, payload

_FILE_VAR = "SKYWARD_MAIN"


class _Spec(ModuleSpec):
    """The specification of `__main__`.

    Args:
        module: `__main__`.
        file: what is in it is written here when the name is read.
    """

    def __init__(self, module: ModuleType, file: Path) -> None:
        super().__init__("__main__", None)
        self._module, self._file = module, file

    @property
    def name(self) -> str:
        _write(vars(self._module), self._file)
        return "skyward.runner.spawned"

    @name.setter
    def name(self, name: str) -> None:
        pass

    @property
    def parent(self) -> str:
        return str(vars(self._module).get("__package__") or "")


def install(file: Path) -> None:
    """Replace `__main__`, which is this worker's program, by an empty module for the user's functions and classes.

    Args:
        file: path at which its content may be written for other processes.
    """
    module = ModuleType("__main__")
    module.__spec__ = _Spec(module, file)
    os.environ[_FILE_VAR] = str(file)
    by_value.namespace = vars(module)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _write(names: Mapping[str, Any], file: Path) -> None:
    """Write what can be pickled, for other processes: what cannot be could not be passed to them in any other way."""
    sendable = {}
    for name, value in names.items():
        if not (name.startswith("__") and name.endswith("__")):
            with suppress(Exception):  # reducers are foreign code and may raise anything
                payload.Pickler(io.BytesIO(), 5).dump(value)
                sendable[name] = value
    with NamedTemporaryFile(dir=file.parent, prefix=file.name, delete=False) as written:
        payload.Pickler(written, 5).dump(sendable)
    Path(written.name).replace(file)


def restore(names: dict[str, Any]) -> None:
    """Set up `__main__`, whose globals these are, in a process that a worker, or such a process, has spawned."""
    by_value.namespace = names
    with open(os.environ[_FILE_VAR], "rb") as file:
        names.update(pickle.load(file))
