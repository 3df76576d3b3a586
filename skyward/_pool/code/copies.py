"""Large arguments of calls that are sent later, as they are when the call is made."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any
from weakref import WeakValueDictionary

from skyward.errors import SerializationError
from skyward.wire import payload

_FIXED = frozenset({int, float, complex, bool, str, bytes, NoneType})


class _Copy(bytearray):
    """A copied buffer; unlike a bytearray it can be referenced weakly."""


class Copies:
    """Copies buffers that may change before they are sent.

    A buffer that has not changed since its last copy shares it, as long as a call needs that: many calls with one model
    take the memory of one.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[int, int], _Copy] = WeakValueDictionary()

    def of_buffers(
        self,
        buffers: Sequence[memoryview],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[memoryview]:
        """Return views of buffers that do not change: copies, unless nothing but the call refers to the argument."""
        own = {id(each) for each in args} | {id(each) for each in kwargs.values()}
        return [
            view if view.readonly or (id(view.obj) in own and _is_unshared(view)) else self._copy(view)
            for view in buffers
        ]

    def of_items(self, *iterables: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of iterables, as tuples if there are several, as they are when an iterator yields them."""
        items = zip(*iterables, strict=False) if len(iterables) > 1 else iterables[0]
        if all(hasattr(each, "__getitem__") for each in iterables):
            return iter(items)  # a container holds its items; an iterator may yield one object again, changed
        return map(self._item, items)

    def _item(self, item: Any) -> Any:
        if _is_fixed(item):
            return item
        try:
            data, buffers = payload.dumps(item)
            return payload.loads(data, self.of_buffers(buffers))
        except SerializationError:
            return item  # the error will be raised again where the call is known

    def _copy(self, view: memoryview) -> memoryview:
        place = ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes
        known: Any = self._known.get(place)
        if known != view:  # bytearrays compare as memory, which is ten times as quick as comparing memoryviews
            self._known[place] = known = _Copy(view)
        return memoryview(known)


def _is_fixed(item: Any) -> bool:
    kind = type(item)
    return kind in _FIXED or (kind is tuple and all(map(_is_fixed, item)))


def _is_unshared(view: memoryview) -> bool:
    """Return whether a buffer is that of a NumPy array which only the arguments of one call refer to."""
    array: Any = view.obj
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and type(array) is numpy.ndarray
        and array.base is None
        and sys.getrefcount(array) <= _references_of_unshared()
    )


@functools.cache
def _references_of_unshared() -> int:
    """Return how many references `_is_unshared` sees of such an array, which depends on the version of Python."""
    arguments = (sys.modules["numpy"].zeros(payload.OUT_OF_BAND),)
    _, (view,) = payload.dumps_arguments(arguments, {}, of="a call")
    array: Any = view.obj
    return sys.getrefcount(array)
