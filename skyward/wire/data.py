"""Pickles that hold data and no code: the only ones that a pool with results='data' reads from its nodes.

A pickle is a program. `Pickler` writes one that uses only a few opcodes and calls only the makers of `datatypes`;
`load` runs only those opcodes and calls only those makers, so that nothing else can happen, whoever wrote the pickle.
https://docs.python.org/3/library/pickle.html#restricting-globals alone would not cover methods that unpickling calls on
objects, and memory from which libraries build objects without a check.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, BinaryIO

from skyward.wire.datatypes import MAKERS, Maker, reduce
from skyward.wire.payload import Buffer, NotDataError, opened


class Pickler(pickle.Pickler):
    """Pickles values that consist of data.

    Raises:
        NotDataError: the value contains something else.
    """

    def __init__(self, file: Any, protocol: int, in_band: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, protocol, buffer_callback=in_band)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType and obj in _MAKERS:
            return NotImplemented
        reduced = reduce(obj)
        if reduced is None:
            raise NotDataError(f"a {kind.__module__}.{kind.__qualname__}")
        return reduced


_MAKERS = frozenset(MAKERS.values())


def load(data: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Return the value that `Pickler` has pickled.

    Raises:
        NotDataError: it is not such a pickle; its other instructions have not been run.
        Exception: it is damaged.
    """
    return _Machine(*opened(data, buffers)).run()


class _Named:
    """A maker on the stack. It may be called, but is not a value."""

    __slots__ = ("make",)

    def __init__(self, make: Maker) -> None:
        self.make = make


class _Machine:
    """An interpreter for the opcodes that `Pickler` uses, and no others."""

    def __init__(self, file: BinaryIO, buffers: Sequence[Buffer]) -> None:
        self._file = file
        self._buffers: Iterator[Buffer] = iter(buffers)
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: list[Any] = []

    def run(self) -> Any:
        """Return the value of the pickle."""
        while True:
            code = self._file.read(1).decode("latin-1")
            opcode = _OPCODES.get(code)
            if opcode is None:
                raise NotDataError("something that is not a pickle")
            if opcode.name == "STOP":
                (value,) = self._items([self._stack.pop()])
                return value
            argument = opcode.arg.reader(self._file) if opcode.arg else None
            if opcode.name in _VALUES:
                self._stack.append(argument)
            elif (do := _INSTRUCTIONS.get(opcode.name)) is not None:
                do(self, argument)
            else:
                raise NotDataError(f"an instruction to run code ({opcode.name})")

    def _items(self, items: list[Any]) -> list[Any]:
        """Return the items after checking that they are values."""
        for item in items:
            if type(item) is _Named:
                raise NotDataError(f"the function {item.make.__qualname__}")
        return items

    def _to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return self._items(items)

    def _target(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise NotDataError(f"an instruction to change a {type(self._stack[-1]).__name__}")
        return self._stack[-1]

    def mark(self, _: None) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def memoize(self, _: None) -> None:
        self._memo.append(self._stack[-1])

    def get(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise NotDataError("something that is not a pickle")
        start = len(self._stack) - count
        self._stack[start:] = [tuple(self._items(self._stack[start:]))]

    def tuple_to_mark(self, _: None) -> None:
        items = tuple(self._to_mark())
        self._stack.append(items)

    def frozenset_to_mark(self, _: None) -> None:
        items = frozenset(self._to_mark())
        self._stack.append(items)

    def append(self, _: None) -> None:
        items = self._items([self._stack.pop()])
        self._target(list).extend(items)

    def appends(self, _: None) -> None:
        items = self._to_mark()
        self._target(list).extend(items)

    def setitem(self, _: None) -> None:
        value, key = self._items([self._stack.pop(), self._stack.pop()])
        self._target(dict)[key] = value

    def setitems(self, _: None) -> None:
        items = self._to_mark()
        self._target(dict).update(zip(items[::2], items[1::2], strict=True))

    def additems(self, _: None) -> None:
        items = self._to_mark()
        self._target(set).update(items)

    def pop(self, _: None) -> None:
        self._stack.pop()

    def pop_to_mark(self, _: None) -> None:
        self._to_mark()

    def name(self, _: None) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        maker = MAKERS.get(f"{module}.{name}")
        if maker is None:
            raise NotDataError(f"{str(module)[:80]}.{str(name)[:80]}")
        self._stack.append(_Named(maker))

    def call(self, _: None) -> None:
        arguments, named = self._stack.pop(), self._stack.pop()
        if type(named) is not _Named or type(arguments) is not tuple:
            raise NotDataError(f"an instruction to call a {type(named).__name__}")
        self._stack.append(named.make(*arguments))

    def next_buffer(self, _: None) -> None:
        self._stack.append(memoryview(next(self._buffers)))

    def readonly(self, _: None) -> None:
        self._stack[-1] = memoryview(self._stack[-1]).toreadonly()


def _push(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine._stack.append(make())


def _nothing(_machine: _Machine, _: Any) -> None:
    """Ignore the opcode: protocol and frames have no effect."""


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
    | {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "EMPTY_LIST": _push(list),
    "EMPTY_DICT": _push(dict),
    "EMPTY_SET": _push(set),
    "EMPTY_TUPLE": _push(tuple),
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": _Machine.tuple_to_mark,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "FROZENSET": _Machine.frozenset_to_mark,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.setitem,
    "SETITEMS": _Machine.setitems,
    "ADDITEMS": _Machine.additems,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_to_mark,
    "STACK_GLOBAL": _Machine.name,
    "REDUCE": _Machine.call,
    "NEXT_BUFFER": _Machine.next_buffer,
    "READONLY_BUFFER": _Machine.readonly,
}
