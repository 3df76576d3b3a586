"""What a worker keeps of shared values: in its memory, or in a file that the processes of its node map."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from skyward.errors import SerializationError
from skyward.runner import shared_values as shared
from skyward.runner.shared_values import KEEP, LEAVE, TAKE, Values
from skyward.wire import payload

DIGEST = bytes(range(16))
ARRAY = np.arange(30_000.0).reshape(100, -1)


def message(how: int, obj: object = ARRAY) -> tuple[bytes, list[memoryview]]:
    head, buffers = payload.dumps(obj)
    return bytes((how,)) + DIGEST + head, buffers


@pytest.fixture
def neighbours(tmp_path: Path) -> tuple[Values, Values]:
    """Two worker processes of one node."""
    pair = Values(), Values()
    for values in pair:
        values.directory = tmp_path / shared.DIRECTORY
    return pair


@pytest.mark.parametrize("how", [KEEP, LEAVE])
def test_calls_get_one_read_only_object(how: int, neighbours: tuple[Values, Values]) -> None:
    """However it is kept, a value is unpickled once per process, and nobody can change it."""
    values, _ = neighbours
    values.keep(*message(how))

    first, second = values.get(DIGEST), values.get(DIGEST)

    assert first is second
    np.testing.assert_array_equal(first, ARRAY)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


@pytest.mark.parametrize(
    "obj",
    [
        np.arange(30_000.0)[::3],
        np.asfortranarray(ARRAY),
        np.array(["a", None, 3] * 1000, dtype=object),
        np.array([b"x" * 2_000_000, b"y"], dtype=object),
    ],
    ids=["strided", "Fortran", "objects", "long byte strings"],
)
def test_a_file_holds_any_value(obj: object, neighbours: tuple[Values, Values]) -> None:
    """A neighbour that was sent nothing but the digest reads what the other has left."""
    giver, taker = neighbours
    giver.keep(*message(LEAVE, obj))
    taker.keep(bytes((TAKE,)) + DIGEST, [])

    got = taker.get(DIGEST)

    np.testing.assert_array_equal(got, obj)
    assert not got.flags.writeable


def test_a_neighbour_waits_for_a_file_that_is_being_written(neighbours: tuple[Values, Values]) -> None:
    """The call may be here before the value: they come over different connections."""
    giver, taker = neighbours
    taker.keep(bytes((TAKE,)) + DIGEST, [])
    got: list[np.ndarray] = []
    reader = threading.Thread(target=lambda: got.append(taker.get(DIGEST)))
    reader.start()
    time.sleep(0.05)
    assert reader.is_alive()

    giver.keep(*message(LEAVE))

    reader.join(60)
    np.testing.assert_array_equal(got[0], ARRAY)


def test_a_file_that_never_comes_is_an_error(
    neighbours: tuple[Values, Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that was to write it may have been killed meanwhile."""
    monkeypatch.setattr(shared, "_WAIT_S", 0.05)
    _, taker = neighbours
    taker.keep(bytes((TAKE,)) + DIGEST, [])

    with pytest.raises(SerializationError, match="did not appear within"):
        taker.get(DIGEST)


def test_forgotten_values_are_gone_and_their_files_too(neighbours: tuple[Values, Values], tmp_path: Path) -> None:
    """A call that has the array keeps it; a new one is told that it is not there."""
    values, _ = neighbours
    values.keep(*message(LEAVE))
    held = values.get(DIGEST)

    values.forget(DIGEST)

    np.testing.assert_array_equal(held, ARRAY)
    assert list((tmp_path / shared.DIRECTORY).iterdir()) == []
    with pytest.raises(SerializationError, match="not there any more"):
        values.get(DIGEST)


def test_another_client_finds_nothing(neighbours: tuple[Values, Values]) -> None:
    """What one client has sent is not kept for the next."""
    values, _ = neighbours
    values.keep(*message(KEEP))

    values.clear()

    with pytest.raises(SerializationError):
        values.get(DIGEST)


def test_copies_may_be_written_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed in a copy is not seen by others."""
    values = Values()
    values.keep(*message(KEEP))
    monkeypatch.setattr(shared, "values", values)

    copy = shared.own_copy(DIGEST)
    copy[:] = 0

    np.testing.assert_array_equal(shared.shared(DIGEST), ARRAY)
