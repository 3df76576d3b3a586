"""Large arguments that calls have in common: what is sent, to whom, how often, and what is let go of."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skyward._pool.code.functions import Functions
from skyward._pool.code.shared_arguments import Packed, SharedArguments, SharedValue, SharedValueIndex
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.task import Task
from skyward.runner.shared_values import Values
from skyward.wire import payload
from skyward.wire.messages import Kind
from tests.unit.pool.fakes import FUNCTION, fake, make_worker


def value(size: int, name: str) -> SharedValue:
    return SharedValue(hashlib.blake2b(name.encode(), digest_size=16).digest(), bytes(size), ())


def post(worker: WorkerClient, ident: int, *values: SharedValue) -> Task:
    """Send a call that needs these values, as the dispatcher does."""
    task = Task(ident, FUNCTION, b"arguments", (), None, 0)
    task.shared = values
    worker.outstanding[ident] = task
    worker.post(task)
    worker.flush()
    return task


def sent(worker: WorkerClient) -> list[tuple[int, int | bytes]]:
    """What a worker was sent: kind; for values their digest, for calls their number."""
    found: list[tuple[int, int | bytes]] = []
    for frame in fake(worker).sent:
        if frame.kind in (Kind.SHARED, Kind.FORGET):
            found.append((frame.kind, bytes(frame.head[:16])))
        elif frame.kind == Kind.CALL:
            found.append((frame.kind, frame.id))
    return found


def test_each_worker_is_sent_a_value_once_and_before_the_call() -> None:
    """The second call that needs it carries its digest alone."""
    first, second, big = make_worker(0), make_worker(1), value(100, "big")

    for worker in (first, second):
        post(worker, 1, big)
        post(worker, 2, big)

        assert sent(worker) == [(Kind.SHARED, big.digest), (Kind.CALL, 1), (Kind.CALL, 2)]


def test_what_was_used_least_recently_is_let_go_of_first() -> None:
    """Beyond the budget the worker is told to forget it; one that is used again is sent again."""
    worker = make_worker(0)
    worker.shared = SharedValueIndex(250)
    a, b, c = (value(100, name) for name in "abc")
    for ident, needed in enumerate([a, b, a, c, b]):
        post(worker, ident, needed)
        worker.outstanding.clear()

    assert [entry for entry in sent(worker) if entry[0] != Kind.CALL] == [
        (Kind.SHARED, a.digest),
        (Kind.SHARED, b.digest),
        (Kind.SHARED, c.digest),
        (Kind.FORGET, b.digest),
        (Kind.SHARED, b.digest),
        (Kind.FORGET, a.digest),
    ]


# packing -------------------------------------------------------------------------------------------------------------


def series() -> SharedArguments:
    return SharedArguments(Functions(), lambda _packed: Future())


def unpacked(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The arguments as a node sees them, after it has been sent the values."""
    values = Values()
    for entry in packed.values:
        values.keep(entry.digest + entry.head, entry.buffers)
    monkeypatch.setattr("skyward.runner.shared_values.values", values)
    args, _ = payload.loads(packed.data, packed.buffers)
    found: tuple[Any, ...] = args
    return found


def test_large_arrays_leave_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal content has one digest, whichever object holds it; small arrays stay in the call."""
    big, small = np.arange(200_000.0), np.arange(100.0)
    packs = series()

    one = packs.pack(len, (big, small), "f")
    two = packs.pack(len, (big.copy(), small), "f")

    assert [entry.digest for entry in one.values] == [entry.digest for entry in two.values]
    assert len(one.data) < 2000
    got_big, got_small = unpacked(one, monkeypatch)
    np.testing.assert_array_equal(got_big, big)
    np.testing.assert_array_equal(got_small, small)


@pytest.mark.parametrize("size", [20_000, 130_000], ids=["below 1 MiB", "above"])
def test_functions_may_write_into_what_joblib_would_not_map(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 1 MiB a call has a copy of its own; above, the array is everybody's and read-only."""
    packed = series().pack(len, (np.zeros(size),), "f")

    (first,), (second,) = unpacked(packed, monkeypatch), payload.loads(packed.data, packed.buffers)[0]

    assert first.flags.writeable == second.flags.writeable == (size < 131_072)
    assert np.shares_memory(first, second) == (size >= 131_072)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(300_000.0).reshape(3, -1)),
        np.arange(600_000.0)[::2],
        np.array([f"text {i}" for i in range(200_000)], dtype=object),
        np.ma.masked_less(np.arange(200_000.0), 100),
        np.zeros(150_000, dtype=[("a", "f8"), ("b", "i4")]),
        np.arange(200_000.0).view(np.recarray),
    ],
    ids=["Fortran", "strided", "objects", "masked", "structured", "subclass"],
)
def test_all_kinds_of_arrays_come_back_as_they_were(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order, type and masks survive, and the content is sent apart from the call."""
    packed = series().pack(len, (array,), "f")

    (got,) = unpacked(packed, monkeypatch)

    assert len(packed.values) >= 1
    assert len(packed.data) < 5000
    assert type(got) is type(array)
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_a_large_array_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further calls, and views of the same memory, cost no copy and no digest; another view is another value."""
    looked: list[object] = []
    real = SharedValue.of

    def look(obj: object) -> SharedValue:
        looked.append(obj)
        return real(obj)

    monkeypatch.setattr(SharedValue, "of", look)
    array = np.arange(400_000.0)
    packs = series()

    for _ in range(5):
        packs.pack(len, (array[:],), "f")
    assert len(looked) == 1

    packs.pack(len, (array[:200_000],), "f")
    packs.pack(len, (array.view(np.int64),), "f")
    assert len(looked) == 3


def test_local_modules_of_arguments_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions and classes in the arguments may stand in files beside the user's program."""
    (tmp_path / "estimators_of_mine.py").write_text("import helper_of_mine\n\nclass Estimator:\n    pass\n")
    (tmp_path / "helper_of_mine.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    module = importlib.import_module("estimators_of_mine")

    packed = series().pack(len, ([(len, (module.Estimator(),), {})],), "fit")

    assert packed.function.name == "fit"
    assert packed.function.bundle is not None
    assert [name for name, _ in packed.function.bundle.files] == ["estimators_of_mine.py", "helper_of_mine.py"]
