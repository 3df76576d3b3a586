"""What a worker keeps of shared values."""

from __future__ import annotations

import numpy as np
import pytest

from skyward.runner import shared_values as shared
from skyward.runner.shared_values import Values
from skyward.wire import payload

DIGEST = bytes(range(16))
ARRAY = np.arange(30_000.0).reshape(100, -1)


def message(obj: object = ARRAY) -> tuple[bytes, list[memoryview]]:
    head, buffers = payload.dumps(obj)
    return DIGEST + head, buffers


@pytest.mark.parametrize(
    "obj",
    [
        ARRAY,
        np.arange(30_000.0)[::3],
        np.asfortranarray(ARRAY),
        np.array(["a", None, 3] * 1000, dtype=object),
        np.array([b"x" * 2_000_000, b"y"], dtype=object),
    ],
    ids=["plain", "strided", "Fortran", "objects", "long byte strings"],
)
def test_calls_get_one_read_only_object(obj: np.ndarray) -> None:
    """A value is unpickled once per process, and nobody can change it."""
    values = Values()
    values.keep(*message(obj))

    first, second = values.get(DIGEST), values.get(DIGEST)

    assert first is second
    np.testing.assert_array_equal(first, obj)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_copies_may_be_written_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed in a copy is not seen by others."""
    values = Values()
    values.keep(*message())
    monkeypatch.setattr(shared, "values", values)

    copy = shared.own_copy(DIGEST)
    copy[:] = 0

    np.testing.assert_array_equal(shared.shared(DIGEST), ARRAY)
