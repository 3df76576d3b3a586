"""The program's `__main__` in a worker: the namespace of all functions and classes that come from the client's.

A process that `multiprocessing` spawns sets up its `__main__` by the module that `__main__.__spec__` names. When it
asks for that name, the content of `__main__` is written to a file, which `skyward.runner.spawned` reads there.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import FunctionType, ModuleType, SimpleNamespace
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


Names = dict[str, tuple[Any, bytes | None]]  # globals that a function uses, with the digests of what was brought

_entered: ContextVar[tuple[Program, Names]] = ContextVar("skyward_entered")


class Program:
    """The program's `__main__` in a worker, or in a process that one has spawned.

    A global that a function brings replaces the present one, unless the same was brought before: then what calls have
    stored there since is kept, as in a module that nodes import.

    Attributes:
        space: the globals.
    """

    def __init__(self, module: ModuleType | None = None) -> None:
        self._module = module or ModuleType("__main__")
        self.space = vars(self._module)
        self._digests: dict[str, bytes | None] = {}
        self._latest: Names = {}
        if module is None and _FILE_VAR in os.environ:
            self._module.__spec__ = _Spec(self._module, Path(os.environ[_FILE_VAR]))

    def enter(self, names: Names) -> None:
        """Make this `__main__` and the target of what the calling thread unpickles, with the globals of a function."""
        sys.modules["__main__"] = sys.modules["__mp_main__"] = self._module
        by_value.current.set(self)
        _entered.set((self, names))
        if self._latest is not names:
            self._latest = names
            for name, (value, digest) in tuple(names.items()):
                self._set(name, value, digest)

    def bring(self, names: Mapping[str, Any]) -> None:
        """Set globals that are being unpickled, for the function that was entered last."""
        for name, value in names.items():
            digest = _digest(value)
            self._latest[name] = value, digest
            self._set(name, value, digest)

    def _set(self, name: str, value: Any, digest: bytes | None) -> None:
        if digest is None or self._digests.get(name) != digest:
            self.space[name], self._digests[name] = value, digest


def enter_again() -> None:
    """Enter what this context entered last, after calls of other functions."""
    program, names = _entered.get()
    program.enter(names)


def _digest(value: Any) -> bytes | None:
    """Return the digest of a value; None for code, and for what cannot be compared."""
    if isinstance(value, FunctionType | ModuleType | type):
        return None
    hashed = hashlib.blake2b(digest_size=16)
    try:
        payload.Pickler(SimpleNamespace(write=hashed.update), 5).dump(value)
    except Exception:  # reducers are foreign code and may raise anything
        return None
    return hashed.digest()


def install(file: Path) -> None:
    """Replace `__main__`, which is this worker's program.

    Args:
        file: path at which its content may be written for other processes.
    """
    os.environ[_FILE_VAR] = str(file)
    Program().enter({})


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


def restore(module: ModuleType) -> None:
    """Set up the `__main__` of a process that a worker, or such a process, has spawned."""
    Program(module).enter({})
    with open(os.environ[_FILE_VAR], "rb") as file:
        vars(module).update(pickle.load(file))
