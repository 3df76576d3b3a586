"""Modules that no file holds: made in memory, or by an importer. Nodes get a file that makes them again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle

from skyward.errors import SerializationError
from skyward.wire import payload

_OWN = frozenset(vars(ModuleType("")).keys() | {"__builtins__", "__path__", "__file__"})  # attributes of each module


def source_of(name: str) -> bytes:
    """Return the source of a module: from its loader, or one that loads its pickled contents.

    If neither is possible, it raises an ImportError that says why.
    """
    module = sys.modules[name]
    if source := _from_loader(module):
        return source
    what = f"The module {name!r}, which was not imported from a file,"
    try:
        with contents(module) as values:
            values["__class__"] = type(module)
            head, views = payload.dumps(values, what=what, pickler=partial(_Pickler, module))
    except SerializationError as error:
        return f"raise ImportError({f'{error} Write the module to a file, or install it on the nodes.'!r})\n".encode()
    arguments = f"__name__, {head!r}, {list(map(bytes, views))!r}"
    return f"__import__({__name__!r}, fromlist=['fill']).fill({arguments})\n".encode()


def _from_loader(module: ModuleType) -> bytes | None:
    try:
        text = vars(module)["__spec__"].loader.get_source(module.__name__)
        compile(text, "", "exec", dont_inherit=True)
    except Exception:  # it has no such loader, or this is foreign code and fails
        return None
    return str(text).encode()


@contextmanager
def contents(module: ModuleType) -> Iterator[dict[str, Any]]:
    """Return what a module contains; meanwhile its functions and classes are pickled by value."""
    is_registered = module.__name__ in cloudpickle.cloudpickle.list_registry_pickle_by_value()
    cloudpickle.register_pickle_by_value(module)
    try:
        yield {name: value for name, value in vars(module).items() if name not in _OWN}
    finally:
        if not is_registered:
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(payload.Pickler):
    """Makes the functions of a module share its namespace on nodes."""

    def __init__(self, module: ModuleType, *args: Any) -> None:
        super().__init__(*args)
        self.globals_ref[id(vars(module))] = _Globals(__name__=module.__name__)


class _Globals(dict[str, Any]):
    def __reduce__(self) -> tuple[Any, ...]:
        return _globals_of, (self["__name__"],)


def _globals_of(name: str) -> dict[str, Any]:
    return vars(sys.modules[name])


def fill(name: str, data: bytes, buffers: list[bytes]) -> None:
    """Give a module that is being imported its contents."""
    module = sys.modules[name]
    values = payload.loads(data, buffers, what=f"The module {name!r}")
    module.__class__ = values.pop("__class__")
    vars(module).update(values)
