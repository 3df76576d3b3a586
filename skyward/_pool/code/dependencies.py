"""What travels with a function, as it is when the function is pickled: values, and local modules.

A function of `__main__` travels with the globals it uses, those of the functions and classes it uses included, and with
what it closes over: `Walk` looks at all of that once.

A module has one content on all nodes until it is loaded anew here: by `importlib.reload`, by an import after it was
deleted from `sys.modules`, or by IPython's autoreload, which changes functions where they are. What this program has
not imported yet is compared by its file: it would import that as it is now. Of a module whose file was edited after
this program imported it, nodes would run other code than this, which is told.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import io
import pickle
import re
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from itertools import repeat
from operator import is_
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cloudpickle.cloudpickle import _extract_code_globals, _should_pickle_by_reference

from skyward._pool import display
from skyward._pool.code.bundle import namespace, read_module
from skyward.wire import payload

MOST_ENTRIES = 1000  # of all collections and objects that one function uses; comparing an entry takes 20 ns
MOST_BYTES = 4096  # of the pickle of an object that can be compared in no other way
MISSING = object()
_FIXED = frozenset(
    {int, float, complex, bool, str, bytes, range, slice, types.NoneType, types.EllipsisType, types.NotImplementedType}
    | {types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType}
    | {types.MemberDescriptorType, types.GetSetDescriptorType, types.ClassMethodDescriptorType, types.CodeType}
    | {types.GenericAlias, re.Pattern}
)
# of a class, what its statement or `dataclass` has made beside the members themselves
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl", "__annotations__"}) | {
    "__dataclass_fields__",
    "__dataclass_params__",
}
_WRAPPED = 8  # decorators around one function that are looked through


class Walk:
    """Everything that a function travels with, each object once."""

    def __init__(self, fn: object) -> None:
        self.spaces: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        self.functions: list[types.FunctionType] = []
        self.cells: list[types.CellType] = []
        self.entries: list[tuple[Collection[Any], list[Any]]] = []
        self.empty: list[Collection[Any]] = []
        self.small: list[tuple[Any, bytes]] = []
        self.tensors: list[tuple[Any, int]] = []
        self.beyond: dict[str, str] = {}
        self._left = MOST_ENTRIES
        self._seen: dict[int, Any] = {}  # by id; the objects are kept, so that no other gets theirs
        self._todo: list[tuple[str, Any]] = [("", fn)]  # with the name of the global it was found under
        while self._todo:
            name, obj = self._todo.pop()
            if type(obj) not in _FIXED and id(obj) not in self._seen:
                self._seen[id(obj)] = obj
                self._look(name, obj, type(obj))

    def _also(self, name: str, objects: Iterable[Any]) -> None:
        self._todo += zip(repeat(name), objects)

    def _look(self, name: str, obj: Any, kind: type) -> None:
        if issubclass(kind, types.FunctionType):
            self._function(name, obj)
        elif issubclass(kind, type):
            self._class(name, obj)
        elif issubclass(kind, enum.Enum):
            self._also(name, (kind,))
        elif issubclass(kind, tuple | frozenset):
            self._also(name, obj)
            self._attributes(name, obj, kind)
        elif kind in _WRAPPERS:
            self._also(name, (getattr(obj, part) for part in _WRAPPERS[kind]))
        elif kind.__module__.partition(".")[0] == "skyward":
            self._also(name, (getattr(obj, "fn", None),))  # a compute function; other values of ours do not change
        elif hasattr(obj, "_version") and kind.__module__.startswith("torch"):
            self._tensor(name, obj)
        elif issubclass(kind, dict):
            self._mapping(name, obj)
            self._attributes(name, obj, kind)
        elif issubclass(kind, list | set | deque | bytearray):
            self._collection(name, obj, obj)
            self._attributes(name, obj, kind)
        elif _is_plain(kind):
            self._attributes(name, obj, kind)
        else:
            self._opaque(name, obj)

    def _function(self, name: str, fn: types.FunctionType) -> None:
        if payload.decorated(fn) or _should_pickle_by_reference(fn):
            return
        self.functions.append(fn)
        space = fn.__globals__
        _, names = self.spaces.setdefault(id(space), (space, {}))
        for used in _extract_code_globals(fn.__code__):
            names[used] = None
            if used in space:
                self._todo.append((used, space[used]))
        for cell in fn.__closure__ or ():
            self.cells.append(cell)
            self._also(name, (contents_of(cell),))
        self._also(name, fn.__defaults__ or ())
        self._also(name, (fn.__kwdefaults__ or {}).values())
        self._mapping(name, fn.__dict__)

    def _class(self, name: str, cls: type) -> None:
        if _should_pickle_by_reference(cls):
            return
        members = vars(cls)
        if self._collection(name, members.values(), cls, walk=False):
            self._also(name, (value for key, value in members.items() if key not in _OF_CLASSES))
        self._also(name, (type(cls), *cls.__bases__))

    def _mapping(self, name: str, mapping: dict[Any, Any]) -> None:
        if self._collection(name, mapping.values(), mapping) and mapping:
            self._collection(name, mapping.keys(), mapping)

    def _collection(self, name: str, entries: Collection[Any], whole: Any, *, walk: bool = True) -> bool:
        """Compare the entries of something from now on; False if they are too many."""
        if len(entries) > self._left:
            self._miss(name, whole)
            return False
        if not entries:
            self.empty.append(entries)
            return True
        self._left -= len(entries)
        self.entries.append((entries, list(entries)))
        if walk:
            self._also(name, entries)
        return True

    def _attributes(self, name: str, obj: Any, kind: type) -> None:
        self._also(name, (kind,))
        if slots := _slots(kind):
            self._collection(name, _Slots(obj, slots), obj)
        if hasattr(obj, "__dict__"):
            self._mapping(name, obj.__dict__)

    def _tensor(self, name: str, tensor: Any) -> None:
        try:
            self.tensors.append((tensor, tensor._version))
        except RuntimeError:  # those of torch.inference_mode count no versions
            self._miss(name, tensor)

    def _opaque(self, name: str, obj: Any) -> None:
        data = small_pickle(obj)
        if data is None:
            self._miss(name, obj)
        else:
            self.small.append((obj, data))

    def _miss(self, name: str, obj: Any) -> None:
        self.beyond.setdefault(name, f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins."))


class _Slots(Collection[Any]):
    """The values of an object's slots, as a collection."""

    def __init__(self, obj: Any, names: Sequence[str]) -> None:
        self._obj, self._names = obj, names

    def __contains__(self, value: object) -> bool:
        return any(each is value for each in self)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self._obj, name, MISSING) for name in self._names)


_WRAPPERS: Mapping[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    types.MappingProxyType: (),
}


def contents_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return MISSING


def _is_plain(kind: type) -> bool:
    """Whether an object is pickled as its attributes."""
    ways = ("__reduce_ex__", "__reduce__", "__getstate__")
    return (
        all(getattr(kind, way) is getattr(object, way) for way in ways)
        and kind not in copyreg.dispatch_table
        and bool(getattr(kind, "__dictoffset__", 0) or _slots(kind) or kind.__basicsize__ == object.__basicsize__)
    )


def _slots(kind: type) -> list[str]:
    return [
        name
        for each in kind.__mro__
        for name, member in vars(each).items()
        if type(member) is types.MemberDescriptorType and "__slots__" in vars(each)
    ]


class _TooLargeError(Exception):
    """More was written than is compared."""


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MOST_BYTES:
            raise _TooLargeError
        return super().write(data)


def small_pickle(obj: Any) -> bytes | None:
    """The pickle of an object; None if it is large, or cannot be made by Python's own pickler."""
    file, buffers = _Bounded(), list[memoryview]()

    def take(buffer: pickle.PickleBuffer) -> None:
        view = buffer.raw()
        if file.tell() + view.nbytes > MOST_BYTES:
            raise _TooLargeError
        buffers.append(view)

    try:
        pickle.Pickler(file, 5, buffer_callback=take).dump(obj)
    except Exception:  # reducers are other people's code; what is not compared is said to be so
        return None
    return b"".join([file.getvalue(), *buffers])


# local modules -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LoadedModule:
    """A local module whose file was read.

    Attributes:
        name, file: which module it is, and where its code stands.
        data: the content of the file when the module was seen first in its present state.
        module: the module as this program has imported it; None where it has not.
    """

    name: str
    file: Path
    data: bytes = field(repr=False)
    module: ModuleType | None
    _spec: object = field(repr=False)
    _stamp: tuple[int, int] | None = field(repr=False)
    _live: list[object] = field(repr=False)
    _cell: int = 0

    @classmethod
    def read(cls, name: str, file: Path) -> LoadedModule:
        """The module as it is now.

        Raises:
            SerializationError: its file cannot be read.
        """
        module = sys.modules.get(name)
        stamp = _stamp(file) if module is None else None
        data = read_module(name, file, "")
        space = space_of(module)
        return cls(name, file, data, module, space.get("__spec__"), stamp, list(_live(space)), display.cells_begun)

    def is_current(self) -> bool:
        """Whether this program has not loaded the module since it was read, nor changed its file before an import."""
        module = sys.modules.get(self.name)
        if module is not self.module:
            return False
        if module is None:
            return _stamp(self.file) == self._stamp
        space = space_of(module)
        if space.get("__spec__") is not self._spec:
            return False
        if self._cell == display.cells_begun:
            return True
        self._cell = display.cells_begun
        live = list(_live(space))
        return len(live) == len(self._live) and all(map(is_, live, self._live))


class LoadedModules:
    """The local modules of one pool; of those that are equal to what was sent before, the same object is the content.

    Args:
        tell: is told of modules whose file is not what this program has imported.

    Attributes:
        latest: the content of each file that nodes are to have, by its path there.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.latest: dict[str, bytes] = {}
        self._known: dict[str, LoadedModule] = {}

    def get(self, name: str, file: Path, path: str) -> LoadedModule:
        """A module, read again if it has changed; `path` is where nodes have its file.

        Raises:
            SerializationError: its file cannot be read.
        """
        known = self._known.get(name)
        if known is None or known.file != file or not known.is_current():
            known = LoadedModule.read(name, file)
            if known.module is not None and _is_edited(space_of(known.module), known._live, known.data):
                self._tell(_warning(known.module))
            if self.latest.get(path) != known.data:
                self.latest[path] = known.data
            known.data = self.latest[path]
            self._known[name] = known
        return known


def space_of(module: ModuleType | None) -> dict[str, Any]:
    """The names of a module; none of one that is not imported."""
    return {} if module is None else namespace(module)


def _live(names: Mapping[str, Any]) -> Iterator[object]:
    """What running a module anew, or changing its functions where they are, changes: its values, and their code."""
    for value in list(names.values()):
        yield value
        yield from _codes(value)
        if isinstance(value, type):
            for member in list(vars(value).values()):
                yield member
                yield from _codes(member)


def _codes(value: Any) -> Iterator[object]:
    """The code of a function, also under decorators that tell what they wrap."""
    for _ in range(_WRAPPED):
        value = getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, FunctionType):
            yield value.__code__
            yield value.__defaults__
        try:
            value = object.__getattribute__(value, "__dict__").get("__wrapped__")
        except AttributeError:
            return
        if value is None:
            return
        yield value


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _is_edited(names: dict[str, Any], live: Iterable[object], source: bytes) -> bool:
    """Whether functions of an imported module are not those of its file.

    Python keeps no source of what it has imported. So the code of its functions is compared with what the file
    compiles to; an edit that changes values alone, and moves no function, is not found. Functions that the file has no
    more may be left from before a reload. Modules of loaders that change the code of a file, as that of pytest does,
    are not compared.

    Args:
        names: the module's.
        live: what they stand for, the code of functions among it.
        source: the content of its file now.
    """
    file = names.get("__file__")
    if type(getattr(names.get("__spec__"), "loader", None)) is not SourceFileLoader or not isinstance(file, str):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # of the file: told when it was imported
            there = set(_all_codes(compile(source, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return True  # this is not what was imported
    by_name = {code.co_qualname for code in there}
    codes = [each for each in live if isinstance(each, CodeType) and each.co_filename == file]
    return any(code.co_qualname in by_name and code not in there for code in codes)


def _all_codes(code: CodeType) -> Iterable[CodeType]:
    """A code object, and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_codes(constant)


def _warning(module: ModuleType) -> str:
    """What is said of such a module."""
    return (
        f"{module.__name__} ({module.__file__}) was edited after this program imported it: nodes run the file as it is "
        "now, this program what it has imported. Load it again, with importlib.reload or by starting anew."
    )
