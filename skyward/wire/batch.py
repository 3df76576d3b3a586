"""Several small values in one payload, each as if it had been sent by itself.

Numbers and texts are pickled as one list, which takes some 30 ns for each. Any other value is pickled on its own when
it is added: what two have in common arrives as two objects, and what is changed later is not seen.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from types import NoneType
from typing import Any

from skyward.wire import payload
from skyward.wire.frames import Buffer

COUNT = struct.Struct("<I")  # beside the payload: how many values it has, or which one is meant
_SCALARS = frozenset({int, float, complex, bool, NoneType})


class Packer:
    """Packs values, one after the other."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._pickled: dict[int, tuple[bytes, list[pickle.PickleBuffer]]] = {}
        self._nbytes = 0  # numbers not counted

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether the payload is so large that another value is better sent by itself."""
        return self._nbytes >= payload.OUT_OF_BAND

    def add(self, value: object, what: str) -> None:
        """Add a value. An error calls it `what`. Buffers of 64 KiB and more, which fill it, are copied by `dumps` only.

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
        """Add all of these values at once if they are numbers; False if one is not, and nothing is added."""
        if not _SCALARS.issuperset(map(type, values)):
            return False
        self._values.extend(values)
        return True

    def remove_last(self) -> None:
        """Take the value that was added last out again."""
        self._values.pop()
        self._pickled.pop(len(self._values), None)

    def dumps(self) -> bytes:
        """The payload."""
        return pickle.dumps((self._values, self._pickled), 5)


class Unpacker:
    """The values of a payload, each unpickled when it is asked for. Only for what an authenticated peer sent."""

    def __init__(self, data: Buffer) -> None:
        self._values: list[Any]
        self._pickled: dict[int, tuple[bytes, list[Buffer]]]
        self._values, self._pickled = pickle.loads(data)

    def __len__(self) -> int:
        return len(self._values)

    def take(self, index: int, what: str) -> Any:
        """The value with this index, once. An error calls it `what`.

        Raises:
            SerializationError: it cannot be unpickled here.
        """
        if index not in self._pickled:
            return self._values[index]
        data, buffers = self._pickled.pop(index)
        return payload.loads(data, [bytearray(buffer) for buffer in buffers], what=what)

    def all(self, what: str) -> list[Any]:
        """All of them, once."""
        for index in tuple(self._pickled):
            self._values[index] = self.take(index, what)
        return self._values
