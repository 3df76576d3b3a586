"""Tells whether what travels with a function is still what it was when the function was pickled.

A function of `__main__` travels with the globals it uses, those of the functions and classes it uses included, and with
what it closes over. All of that is looked at once, when the function is pickled; at each call it is compared with what
was found, name by name and entry by entry, by identity.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import io
import pickle
import re
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

from cloudpickle.cloudpickle import _extract_code_globals, _should_pickle_by_reference

from skyward.wire import payload

MOST_ENTRIES = 1000  # of all collections and objects that one function uses; comparing an entry takes 20 ns
MOST_BYTES = 4096  # of the pickle of an object that can be compared in no other way
_MISSING = object()
_codes = attrgetter("__code__")
_defaults = attrgetter("__defaults__")
_keyword_defaults = attrgetter("__kwdefaults__")
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


class Watch:
    """What one function travels with.

    Args:
        fn: the function, which has just been pickled.

    Attributes:
        beyond: the globals, by name, inside which changes are not seen, each with what it is.
    """

    __slots__ = ("_cells", "_codes", "_empty", "_entries", "_functions", "_small", "_spaces", "_tensors", "beyond")

    def __init__(self, fn: Callable[..., Any]) -> None:
        found = _Walk()
        found.look_at(fn)
        self._spaces = [
            (space, (*names,), [space.get(name, _MISSING) for name in names]) for space, names in found.spaces.values()
        ]
        self._functions = found.functions
        self._codes = [(get, list(map(get, found.functions))) for get in (_codes, _defaults, _keyword_defaults)]
        self._cells = [(cell, _contents(cell)) for cell in found.cells]
        self._entries, self._empty = found.entries, found.empty
        self._small = found.small
        self._tensors = found.tensors
        self.beyond: dict[str, str] = found.beyond

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could change."""
        return not (self._functions or self._entries or self._empty or self._small or self._tensors)

    def unchanged(self) -> bool:
        """Whether everything is as it was."""
        try:
            for space, names, values in self._spaces:
                if not all(map(is_, map(space.get, names, repeat(_MISSING)), values)):
                    return False
            for get, values in self._codes:
                if not all(map(is_, map(get, self._functions), values)):
                    return False
            for cell, content in self._cells:
                if _contents(cell) is not content:
                    return False
            if any(self._empty):
                return False
            for entries, values in self._entries:
                if len(entries) != len(values) or not all(map(is_, entries, values)):
                    return False
            return not (self._small or self._tensors) or self._content_is_unchanged()
        except RuntimeError:  # another thread changes a collection
            return False

    def _content_is_unchanged(self) -> bool:
        return all(tensor._version == version for tensor, version in self._tensors) and all(
            _pickled(obj) == data for obj, data in self._small
        )


class _Walk:
    """Everything that a function travels with, each object once."""

    def __init__(self) -> None:
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
        self._todo: list[tuple[str, Any]] = []  # with the name of the global it was found under

    def look_at(self, fn: object) -> None:
        self._todo.append(("", fn))
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
            self._also(name, (_contents(cell),))
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
        data = _pickled(obj)
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
        return (getattr(self._obj, name, _MISSING) for name in self._names)


_WRAPPERS: Mapping[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    types.MappingProxyType: (),
}


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return _MISSING


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


def _pickled(obj: Any) -> bytes | None:
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
