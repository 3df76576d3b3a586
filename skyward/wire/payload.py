"""Serialisation of functions, arguments, results and exceptions.

Uses pickle protocol 5 through cloudpickle, so that objects of `__main__` are sent by value; large buffers stay outside
of the pickle and are never copied here. The same applies to large byte strings, such as whole files, which are not
buffers for pickle. Only call `loads` and `load_exception` on data from an authenticated peer.
"""

from __future__ import annotations

import copyreg
import gc
import hashlib
import io
import pickle
import struct
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from types import CodeType, FunctionType, ModuleType, NoneType
from typing import Any, ClassVar

import cloudpickle

from skyward.errors import SerializationError
from skyward.wire import by_value, exceptions, reasons, tensors
from skyward.wire.exceptions import said

OUT_OF_BAND = 64 * 1024  # bytes; smaller buffers cost more as a separate part of a message than as a copy
_LARGE = 1 << 20  # bytes; the pickler calls `write` with each string of 64 KiB and more, and with frames of about that
_GC_PAUSE = 64 * 1024  # bytes; loading 5 MB of small dicts takes 87 ms, 36 of them without the cyclic collector
_SCALARS = frozenset({int, float, complex, bool, str, NoneType})
_PLAIN_ITEMS = 32  # checking more items costs more than the general pickler
_LARGEST_ERROR = 16_000_000  # bytes of a pickled exception; a larger one is sent as text
_NO_FILE = "<dynamic-code>"  # https://github.com/cloudpipe/cloudpickle/pull/560, for equal pickles
_reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]
Buffer = bytes | bytearray | memoryview


# special pickling -----------------------------------------------------------------------------------------------------


def _code_with_file(code: CodeType) -> tuple[Any, ...]:
    """Reduce a code object like cloudpickle, but with the file named by tracebacks, debuggers and warnings."""
    make, arguments = _reduce_code(code)
    return make, tuple(code.co_filename if each == _NO_FILE else each for each in arguments)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler with special cases.

    These are files of code, decorated functions, objects of `__main__`, views of buffers, exceptions, tensors, and maps
    of files.
    """

    dispatch_table: ClassVar = ChainMap(
        {CodeType: _code_with_file, **by_value.TABLE}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is FunctionType:
            return self._function(obj)
        if issubclass(kind, type):
            is_by_value = by_value.is_class(obj) and not is_importable(obj)
            return by_value.reduce_class(obj) if is_by_value else super().reducer_override(obj)
        if kind is memoryview:
            if obj.c_contiguous and obj.ndim and len(obj.format) == 1:
                return _view, (pickle.PickleBuffer(obj), obj.format, obj.shape)
        elif issubclass(kind, BaseException):
            return exceptions.reduce(obj) or NotImplemented
        elif issubclass(kind, by_value.DESCRIPTORS):
            return by_value.reduce_descriptor(obj)
        elif issubclass(kind, Enum) and not is_importable(kind):
            return by_value.reduce_member(obj)
        elif tensors.is_storage(kind):
            return tensors.reduce(obj)
        elif kind.__name__ == "memmap" and kind.__module__.partition(".")[0] == "numpy":
            return _itself, (obj.view(sys.modules["numpy"].ndarray),)  # numpy would copy it into the pickle
        elif kind.__module__ in by_value.MAIN and not is_default(kind):
            return by_value.reduce_instance(obj)
        elif kind is not ModuleType and issubclass(kind, ModuleType) and (name := _loaded_as(obj)):
            return import_module, (name,)  # cloudpickle knows plain ones alone
        return NotImplemented

    def _function(self, fn: FunctionType) -> Any:
        if found := decorated(fn):
            return undecorated, found
        if by_value.is_program(fn.__globals__):
            self.globals_ref.setdefault(id(fn.__globals__), by_value.attributes_of(fn.__globals__))
        reduced = super().reducer_override(fn)
        return reduced if reduced is NotImplemented else by_value.reduce_function(fn, reduced)


def _loaded_as(module: ModuleType) -> str:
    """Return the name by which a module can be imported, without looking at attributes that its class may make."""
    name = ModuleType.__getattribute__(module, "__name__")
    return str(name) if sys.modules.get(name) is module else ""


def decorated(fn: FunctionType) -> tuple[str, str] | None:
    """Return where `fn` is the `.fn` of a module's attribute, as for a function under `@sky.compute`; else None.

    Such a function is sent by reference like its neighbours, so that it shares its module's globals on the node.
    """
    module = sys.modules.get(fn.__module__)
    if module is None or fn.__module__ in by_value.MAIN:
        return None
    found: Any = module
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    registered = cloudpickle.cloudpickle.list_registry_pickle_by_value()
    if getattr(found, "fn", None) is not fn or fn.__module__ in registered:
        return None
    return fn.__module__, fn.__qualname__


def is_importable(obj: FunctionType | type) -> bool:
    """Return whether a function or class is pickled by its name: nodes import it from its module."""
    if isinstance(obj, FunctionType) and decorated(obj):
        return True
    above = obj.__module__ if isinstance(obj, FunctionType) else type.__getattribute__(obj, "__module__")
    module = sys.modules.get(above)
    if module is None or above in by_value.MAIN:
        return False
    registered = cloudpickle.cloudpickle.list_registry_pickle_by_value()
    while above:
        if above in registered:
            return False
        above = above.rpartition(".")[0]
    found: Any = module
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def undecorated(module: str, qualname: str) -> Any:
    __import__(module)
    found: Any = sys.modules[module]
    for name in (*qualname.split("."), "fn"):
        found = getattr(found, name)
    return found


def is_default(kind: type) -> bool:
    """Return whether objects of this class do not say themselves how they are pickled."""
    reducers: Any = kind
    by_class = reducers.__reduce_ex__ is object.__reduce_ex__ and reducers.__reduce__ is object.__reduce__
    return by_class or kind in copyreg.dispatch_table


def _itself(array: Any) -> Any:
    return array


def _view(buffer: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B").cast(form, shape) if 0 not in shape else view  # type: ignore[call-overload]


# values ---------------------------------------------------------------------------------------------------------------


def dumps(
    obj: object, *, what: str = "A value", pickler: Callable[..., pickle.Pickler] = Pickler
) -> tuple[bytes, list[memoryview]]:
    """Pickle `obj`, returning large buffers and byte strings separately.

    They are views of the original memory: changes before they are sent change what is sent. Errors call the object
    `what`, which starts a sentence. `pickler` creates a pickler that replaces some objects.

    Raises:
        SerializationError: something in it cannot be pickled.
    """
    if _plain(obj, 3):
        return pickle.dumps(obj, 5), []
    file = _Writer()
    buffers: list[memoryview] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND:
            return True
        buffers.append(view)
        return False

    try:
        pickler(file, 5, in_band).dump(obj)
    except Exception as error:  # reducers are foreign code and may raise anything
        raise reasons.unpicklable(what, obj, error, _pickle) from reasons.cause_of(error)
    return file.head(), file.large + buffers


def dumps_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, of: str) -> tuple[bytes, list[memoryview]]:
    """Pickle the arguments of the function named `of`; `loads` returns `(args, kwargs)`.

    Raises:
        SerializationError: one of them cannot be pickled; the message says which.
    """
    try:
        return dumps((args, kwargs), what=f"The arguments of {of}()")
    except SerializationError as error:
        whole = error
    named = [(f"Argument {i + 1}", arg) for i, arg in enumerate(args)]
    named += [(f"Argument {name!r}", arg) for name, arg in kwargs.items()]
    for name, arg in named:  # the first that fails alone raises with its own name
        dumps(arg, what=f"{name} of {of}() (a {type(arg).__name__})")
    raise whole


def dumps_function(fn: Callable[..., Any]) -> tuple[bytes, bytes]:
    """Pickle a function; return a 16-byte digest of its content, and the pickle.

    Raises:
        SerializationError: it, or something it refers to, cannot be pickled.
    """
    try:
        data = _pickle(fn)
    except Exception as error:  # see dumps
        raise reasons.unpicklable_function(fn, error, _pickle) from reasons.cause_of(error)
    return hashlib.blake2b(data, digest_size=16).digest(), data


def pickles_as(fn: Callable[..., Any], data: bytes) -> bool:
    """Return whether `dumps_function` would return this pickle now; stop where they differ."""
    file = _Expecting(data)
    try:
        Pickler(file, 5).dump(fn)
    except Exception:  # _DiffersError, or what `dumps_function` will raise
        return False
    return file.is_complete


def _plain(obj: object, depth: int) -> bool:
    """Return whether `obj` is small and consists only of exact built-in types, so that the plain pickler suffices."""
    kind = type(obj)
    if kind in _SCALARS:
        return True
    if kind is bytes:
        return len(obj) < _LARGE  # type: ignore[arg-type]
    if depth and (kind is tuple or kind is list):
        items: Any = obj
    elif depth and kind is dict:
        items = obj.values()  # type: ignore[attr-defined]
        for key in obj:  # type: ignore[attr-defined]
            if type(key) is not str:
                return False
    else:
        return False
    if len(items) > _PLAIN_ITEMS:
        return False
    for item in items:  # noqa: SIM110 - all() with a generator takes three times as long, in every call
        if type(item) not in _SCALARS and not _plain(item, depth - 1):
            return False
    return True


def _pickle(obj: object) -> bytes:
    file = io.BytesIO()
    Pickler(file, 5).dump(obj)
    return file.getvalue()


def loads(data: Buffer, buffers: Sequence[Buffer] = (), *, what: str = "A payload") -> Any:
    """Unpickle the result of `dumps`. The value uses the memory of `buffers`: arrays are writable if the buffers are.

    Errors call the object `what`, which starts a sentence.

    Raises:
        SerializationError: it cannot be unpickled here, usually because a module is missing.
    """
    pause = len(data) >= _GC_PAUSE and gc.isenabled()
    try:
        if pause:
            gc.disable()
        if _is_split(data):
            file, rest = _joined(data, buffers)
            return pickle.Unpickler(file, buffers=rest).load()
        return pickle.loads(data, buffers=buffers)
    except ModuleNotFoundError as error:
        raise SerializationError(reasons.missing_module(what, error)) from error
    except (exceptions.Stopping, KeyboardInterrupt):
        raise
    except BaseException as error:  # constructors are foreign code and may raise anything
        raise SerializationError(f"{what} cannot be unpickled {reasons.where_of()}: {said(error)}.") from error
    finally:
        if pause:
            gc.enable()


# exceptions -----------------------------------------------------------------------------------------------------------


def dump_exception(error: BaseException, conceal: Callable[[str], str] | None = None) -> bytes:
    """Pickle an exception raised by user code, with the text of its traceback and those of its causes.

    Texts are masked, including those in the exception itself.

    Never fails: what cannot be pickled, or could end the client (`SystemExit` and the like), is sent as text.
    """
    record = exceptions.Record.of(error)
    record = record._replace(
        notes=(*record.notes, *exceptions.tried(lambda: reasons.advice_on(error, record.text), lambda _: ()))
    )
    if conceal is not None:
        record = exceptions.masked(record, error, conceal)
    if record.ordinary and not record.problem:
        record = exceptions.tried(
            lambda: record._replace(data=_pickled(error, record)),
            lambda problem: record._replace(problem=(conceal or str)(said(problem))),
        )
    return pickle.dumps(tuple(record), 5)


def _pickled(error: BaseException, record: exceptions.Record) -> bytes:
    """Return the pickled exception if it can be rebuilt here; if it cannot, it could not be on the client either."""
    data = _pickle(error)
    if len(data) > _LARGEST_ERROR:
        raise ValueError(f"it takes {len(data) / 1e6:.0f} MB, and at most {_LARGEST_ERROR / 1e6:.0f} are sent")
    _rebuilt(data, record._replace(trace=""))
    return data


def load_exception(data: Buffer) -> BaseException:
    """Return the exception passed to `dump_exception`, with its remote traceback as its cause.

    If the exception cannot be rebuilt, return a `RemoteError` with the name of its type, its text and its traceback.
    """
    record = load_record(data)
    if record.data is None:
        return record.as_remote_error()
    try:
        return _rebuilt(record.data, record)
    except (exceptions.Stopping, KeyboardInterrupt):
        raise
    except BaseException as problem:  # constructors are foreign code
        return record._replace(problem=said(problem)).as_remote_error()


def load_record(data: Buffer) -> exceptions.Record:
    """Return the texts written by `dump_exception`, without the exception itself."""
    return exceptions.Record(*pickle.loads(data))


def _rebuilt(data: bytes, record: exceptions.Record) -> BaseException:
    error = pickle.loads(data)
    if not isinstance(error, BaseException):
        raise TypeError(f"Its class makes a {type(error).__name__} of it")
    record.complete(error)
    return error


def noted(error: BaseException, note: str) -> BaseException:
    """Return the exception with a note added, even if its class forbids setting attributes."""
    exceptions.tried(lambda: exceptions.add_note(error, note), lambda _: None)
    return error


# comparing pickles ----------------------------------------------------------------------------------------------------


class _DiffersError(Exception):
    """A pickle is not the expected one."""


class _Expecting:
    """The file of a pickler whose pickle is expected to be known."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = memoryview(data), 0

    @property
    def is_complete(self) -> bool:
        return self._at == len(self._data)

    def write(self, part: bytes | memoryview | pickle.PickleBuffer) -> int:
        """Take the next part.

        Raises:
            _DiffersError: it is not the expected one.
        """
        view = memoryview(part).cast("B")
        for start in range(0, len(view), _LARGE):
            piece = bytes(view[start : start + _LARGE])  # comparing memoryviews takes ten times as long
            if bytes(self._data[self._at : self._at + len(piece)]) != piece:
                raise _DiffersError
            self._at += len(piece)
        return len(view)


# pickles with separate byte strings -----------------------------------------------------------------------------------


_MARK = 0  # no pickle starts with this byte
_COUNT = struct.Struct("<BI")
_PLACE = struct.Struct("<Q")


class _Writer:
    """The file that a pickler writes to."""

    def __init__(self) -> None:
        self._small: list[bytes] = []
        self._length = 0
        self._places: list[int] = []
        self.large: list[memoryview] = []

    def write(self, part: bytes | memoryview) -> int:
        """Store a part of the pickle."""
        if type(part) is bytes and len(part) >= _LARGE:
            self._places.append(self._length)
            self.large.append(memoryview(part))
        else:  # memory other than a byte string will be reused by the pickler
            self._small.append(bytes(part))
            self._length += len(part)
        return len(part)

    def head(self) -> bytes:
        """Return the pickle, without the parts in `large` but with their positions."""
        if not self.large:
            return b"".join(self._small)
        places = b"".join(map(_PLACE.pack, self._places))
        return b"".join((_COUNT.pack(_MARK, len(self.large)), places, *self._small))


def _is_split(head: Buffer) -> bool:
    """Return whether some of this pickle's parts are in buffers."""
    return len(head) > 0 and head[0] == _MARK


def _joined(head: Buffer, buffers: Sequence[Buffer]) -> tuple[io.BufferedReader, Sequence[Buffer]]:
    """Return a file that reads like the whole pickle, and the buffers that are not parts of it."""
    view = memoryview(head)
    _, count = _COUNT.unpack_from(view)
    body = _COUNT.size + count * _PLACE.size
    parts, start = [], body
    for index in range(count):
        (place,) = _PLACE.unpack_from(view, _COUNT.size + index * _PLACE.size)
        parts += [view[start : body + place], memoryview(buffers[index]).cast("B")]
        start = body + place
    return io.BufferedReader(_Parts([*parts, view[start:]])), buffers[count:]


class _Parts(io.RawIOBase):
    """A file that reads memory blocks one after the other."""

    def __init__(self, parts: list[memoryview]) -> None:
        super().__init__()
        self._parts = parts[::-1]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # the reader passes nothing else
        while self._parts and not len(self._parts[-1]):
            self._parts.pop()
        if not self._parts:
            return 0
        part = self._parts[-1]
        count = min(len(buffer), len(part))
        buffer[:count] = part[:count]
        self._parts[-1] = part[count:]
        return count
