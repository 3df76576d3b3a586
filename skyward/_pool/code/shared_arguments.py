"""Calls that share large arguments: each is sent to a worker once, and afterwards referred to by its digest."""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward._pool.code.bundle import modules_of
from skyward.runner.shared_values import DIGEST_BYTES, own_copy, shared
from skyward.system.futures import Future
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind

if TYPE_CHECKING:
    from skyward._pool.code.functions import Function, Functions

BUDGET = 512 * 1024 * 1024  # limit in bytes for unused values that are kept here, and in each worker
SHARED_FROM = 64 * 1024  # bytes; smaller values are cheaper inside the call than as a separate message
READ_ONLY_FROM = 1024 * 1024  # bytes; below, calls get writable copies; joblib uses the same limit


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value to send, as a snapshot: later changes to the original are not sent."""

    digest: bytes
    head: bytes = field(repr=False)
    buffers: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, obj: object) -> SharedValue:
        """Return a snapshot of an object.

        Raises:
            SerializationError: it cannot be pickled.
        """
        head, views = payload.dumps(obj, what="A large argument")
        buffers = tuple(map(bytes, views))
        digest = hashlib.blake2b(head, digest_size=DIGEST_BYTES)
        for buffer in buffers:
            digest.update(buffer)
        return cls(digest.digest(), head, buffers)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return len(self.head) + sum(map(len, self.buffers))


class Packed(NamedTuple):
    """A call that is ready to be sent."""

    function: Function
    data: bytes
    buffers: Sequence[memoryview]
    values: tuple[SharedValue, ...]


class SharedArguments:
    """Makes calls that share large arguments, such as those of one `joblib.Parallel`; see `ComputePool._series`.

    An array of 1 MiB or more is read once: later changes to it are not detected, and calls receive it read-only. Calls
    receive copies of smaller arrays and of arrays of objects.

    Args:
        functions: the functions of the pool.
        start: sends a packed call and returns its future.
    """

    def __init__(self, functions: Functions, start: Callable[[Packed], Future[Any]]) -> None:
        self._functions, self._start = functions, start
        # by address, least recently used first; the reference to the array keeps its address from being reused
        self._large: OrderedDict[tuple[Any, ...], tuple[Any, SharedValue]] = OrderedDict()
        self._noted: set[FunctionType] = set()
        self._modules: set[str] = set()

    def run_async(self, fn: Callable[..., Any], args: tuple[Any, ...], *, name: str) -> Future[Any]:
        """Run `fn(*args)`, named `name` in errors, on a node in the background. Cancelling the future stops the call.

        Raises:
            SerializationError: something in the arguments cannot be pickled.
            PoolClosedError: the pool is closed, or has no nodes left.
        """
        return self._start(self.pack(fn, args, name))

    def pack(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str) -> Packed:
        """Return the call: function with the local modules that the arguments need, pickled arguments, shared values.

        Raises:
            SerializationError: something in the arguments cannot be pickled.
        """
        values: dict[bytes, SharedValue] = {}
        pickler = partial(_Pickler, self, values)
        data, buffers = payload.dumps((args, {}), what=f"An argument of {name}()", pickler=pickler)
        function = self._functions.of_series(fn, name, frozenset(self._modules))
        return Packed(function, data, buffers, tuple(values.values()))

    def value(self, obj: Any, nbytes: int) -> SharedValue:
        """Return the shared value of an array or buffer of `nbytes` bytes."""
        if nbytes < READ_ONLY_FROM:
            return SharedValue.of(obj)
        address = _address(obj)
        if address not in self._large:
            while sum(value.nbytes for _, value in self._large.values()) > BUDGET:
                self._large.popitem(last=False)
            self._large[address] = obj, SharedValue.of(obj)
        self._large.move_to_end(address)
        return self._large[address][1]

    def note(self, obj: Any, *, by_value: bool) -> None:
        """Record the modules that an object in the arguments needs; each function is examined once."""
        if type(obj) is FunctionType:
            if obj in self._noted:
                return
            self._noted.add(obj)
        self._modules.update(modules_of(obj, by_value=by_value))


class _Pickler(payload.Pickler):
    """Replaces large arrays by calls of `shared`, and records the modules of everything else."""

    def __init__(
        self, series: SharedArguments, values: dict[bytes, SharedValue], file: Any, protocol: int, in_band: Any
    ) -> None:
        super().__init__(file, protocol, in_band)
        numpy, arrow = sys.modules.get("numpy"), sys.modules.get("pyarrow")
        self._array: Any = numpy.ndarray if numpy else ()
        self._buffer: Any = arrow.Buffer if arrow else ()
        self._series, self._values = series, values

    def reducer_override(self, obj: Any) -> Any:
        nbytes = obj.nbytes if isinstance(obj, self._array) else obj.size if isinstance(obj, self._buffer) else 0
        if nbytes >= SHARED_FROM:
            value = self._series.value(obj, nbytes)
            self._values[value.digest] = value
            copied = isinstance(obj, self._array) and (nbytes < READ_ONLY_FROM or obj.dtype.hasobject)
            return own_copy if copied else shared, (value.digest,)
        reduced = super().reducer_override(obj)
        self._series.note(obj, by_value=reduced is not NotImplemented)
        return reduced


def _address(obj: Any) -> tuple[Any, ...]:
    """Return memory address and layout of an array or buffer, since several objects may be views of one array."""
    if type(obj).__module__ == "numpy":
        view = obj.__array_interface__
        return type(obj), view["data"][0], view["strides"], view["shape"], obj.dtype
    if hasattr(obj, "address"):
        return obj.address, obj.size
    return (id(obj),)  # a subclass of ndarray may hold more than its data


class SharedValueIndex:
    """The shared values that one worker holds. Used under the dispatcher's lock.

    Args:
        budget: bytes above which values that no outstanding call needs are dropped, least recently used first.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._held: OrderedDict[bytes, int] = OrderedDict()  # size by digest, least recently used first

    def messages(self, values: Iterable[SharedValue], outstanding: Iterable[Sequence[SharedValue]]) -> Iterator[Frame]:
        """Yield the messages to send the worker before a call that needs these values.

        Args:
            values: those of the call.
            outstanding: those of each outstanding call, this one included.
        """
        for value in values:
            if value.digest not in self._held:
                self._held[value.digest] = value.nbytes
                yield Frame(Kind.SHARED, 0, value.digest + value.head, value.buffers)
            self._held.move_to_end(value.digest)
        excess = sum(self._held.values()) - self._budget
        if excess <= 0:
            return
        needed = {value.digest for call in outstanding for value in call}
        for digest in [digest for digest in self._held if digest not in needed]:
            if excess <= 0:
                return
            excess -= self._held.pop(digest)
            yield Frame(Kind.FORGET, 0, digest)
