"""Several small values in one payload, with the same result as if each had been sent separately.

Numbers and strings are pickled as one list, which takes some 30 ns for each. Any other value is pickled separately when
it is added: objects shared by two values arrive as two objects, and later changes have no effect.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from types import NoneType
from typing import Any

from skyward.wire import payload
from skyward.wire.frames import Buffer

COUNT = struct.Struct("<I")  # sent with the payload: the number of its values, or the index of one
_SCALARS = frozenset({int, float, complex, bool, NoneType})


class Packer:
    """Packs values into one payload."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._pickled: dict[int, tuple[bytes, list[pickle.PickleBuffer]]] = {}
        self._nbytes = 0  # without numbers

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether the payload is so large that further values are better sent separately."""
        return self._nbytes >= payload.OUT_OF_BAND

    def add(self, value: object, what: str) -> None:
        """Add a value, called `what` in errors. Buffers of 64 KiB and more, which fill it, are only copied by `dumps`.

        Raises:
            SerializationError: it cannot be pickled.
        """
        kind = type(value)
        if kind in _SCALARS:
            self._values.append(value)
        elif kind is str:
            self._nbytes += len(value)  # type: ignore[arg-type]
            self._values.append(value)
        else:
            data, views = payload.dumps(value, what=what)
            self._nbytes += len(data) + sum(view.nbytes for view in views)
            self._pickled[len(self._values)] = data, [pickle.PickleBuffer(view) for view in views]
            self._values.append(None)

    def add_numbers(self, values: Sequence[object]) -> bool:
        """Add all of these values if they are numbers; if one is not, add none and return False."""
        if not _SCALARS.issuperset(map(type, values)):
            return False
        self._values.extend(values)
        return True

    def remove_last(self) -> None:
        """Remove the value that was added last."""
        self._values.pop()
        self._pickled.pop(len(self._values), None)

    def dumps(self) -> bytes:
        """Return the payload."""
        return pickle.dumps((self._values, self._pickled), 5)


class Unpacker:
    """The values of a payload, unpickled on demand. Only for data from an authenticated peer."""

    def __init__(self, data: Buffer) -> None:
        self._values: list[Any]
        self._pickled: dict[int, tuple[bytes, list[Buffer]]]
        self._values, self._pickled = pickle.loads(data)

    def __len__(self) -> int:
        return len(self._values)

    def take(self, index: int, what: str) -> Any:
        """Return the value with this index, called `what` in errors; may be called once per index.

        Raises:
            SerializationError: it cannot be unpickled here.
        """
        if index not in self._pickled:
            return self._values[index]
        data, buffers = self._pickled.pop(index)
        return payload.loads(data, [bytearray(buffer) for buffer in buffers], what=what)

    def all(self, what: str) -> list[Any]:
        """Return all values; may be called once."""
        for index in tuple(self._pickled):
            self._values[index] = self.take(index, what)
        return self._values
