"""Several small values in one payload, with the same result as if each had been sent separately.

Numbers and strings are pickled as one list, which takes some 30 ns for each. Any other value is pickled separately when
it is added: objects shared by two values arrive as two objects, and later changes have no effect.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

from skyward.wire import payload
from skyward.wire.frames import Buffer

COUNT = struct.Struct("<I")  # sent with the payload: the number of its values, or the index of one
_SCALARS = frozenset({int, float, complex, bool, NoneType})
_Entry = Any  # a number or a string as it is, anything else as a tuple: its pickle and the buffers beside that


def add(entries: list[_Entry], value: object, what: str) -> int:
    """Add a value, called `what` in errors, to a batch; return its size in bytes, 0 for a number.

    Raises:
        SerializationError: it cannot be pickled.
    """
    kind = type(value)
    if kind in _SCALARS or kind is str:
        entries.append(value)
        return len(value) if kind is str else 0  # type: ignore[arg-type]
    data, views = payload.dumps(value, what=what)
    entries.append((data, [bytes(view) for view in views]))
    return len(data) + sum(view.nbytes for view in views)


def are_numbers(values: Iterable[object]) -> bool:
    """Return whether these values can be the entries of a batch as they are, at any number."""
    return _SCALARS.issuperset(map(type, values))


def dumps(entries: Sequence[_Entry]) -> bytes:
    """Return the payload of a batch."""
    return pickle.dumps(entries, 5)


def loads(data: Buffer) -> list[_Entry]:
    """Return the entries of a batch. Only for data from an authenticated peer."""
    entries: list[_Entry] = pickle.loads(data)
    return entries


def value_of(entry: _Entry, what: str) -> Any:
    """Return the value of an entry, called `what` in errors.

    Raises:
        SerializationError: it cannot be unpickled here.
    """
    if type(entry) is not tuple:
        return entry
    data, buffers = entry
    return payload.loads(data, [bytearray(buffer) for buffer in buffers], what=what)
