"""Reads pickles of built-in values only, at full speed; `data` reads those that hold arrays and the like."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from typing import Any, BinaryIO

from skyward.wire import segments

REMEDY = (
    "A pool with results='data' takes built-in values, arrays of numpy and pandas, tensors of PyTorch, dataclasses, "
    "named tuples and enumerations that this program has itself. Convert it on the node, or open the pool with "
    "results='any' if its nodes may run code here."
)
Buffer = bytes | bytearray | memoryview


class NotDataError(ValueError):
    """Something is no data; the text completes "The result of f() holds ..."."""


class NamesError(ValueError):
    """A pickle names something that is no built-in value."""


def load(data: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """The value. Nothing that a pickle names is looked up, so there is nothing that it could call.

    Raises:
        NamesError: it names something.
        Exception: it is broken.
    """
    copyreg.clear_extension_cache()  # the one way from a pickle to an object that does not ask `find_class`
    file, rest = opened(data, buffers)
    return _Unpickler(file, buffers=rest).load()


def opened(data: Buffer, buffers: Sequence[Buffer]) -> tuple[BinaryIO, Sequence[Buffer]]:
    """A file that reads like the whole pickle, and the buffers beside it."""
    return segments.joined(data, buffers) if segments.is_split(data) else (io.BytesIO(data), buffers)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        raise NamesError(f"{str(module)[:80]}.{str(name)[:80]}")
