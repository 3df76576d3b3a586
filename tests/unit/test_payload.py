"""What travels between client and nodes: arguments, functions, results."""

from __future__ import annotations

import array
import gc
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward.errors import SerializationError
from skyward.wire import payload

LOCK = threading.Lock()


def there_and_back(value: Any) -> Any:
    data, buffers = payload.dumps(value)
    return payload.loads(data, [bytearray(b) for b in buffers])


LARGE = [b"x" * 2_000_000, bytearray(b"c" * 2_000_000), "b" * 2_000_000, b"d" * 100_000, range(10**9)]
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.sampled_from(LARGE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(value=VALUES)
@settings(max_examples=50)
def test_values_of_any_size_and_depth_come_back_equal(value: Any) -> None:
    """Of the same type; byte strings that stay outside the pickle find their places again."""
    back = there_and_back([value, value])

    assert back == [value, value]
    assert type(back[0]) is type(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(100_000),
        lambda: np.arange(100_000).reshape(100, 1000).T,
        lambda: np.arange(100_000)[::2],
        lambda: np.arange(100_000).reshape(100, 1000)[:, 10:20],
        lambda: np.zeros((0, 3)),
        lambda: np.array(["a", None], dtype=object),
        lambda: np.float32(1.5),
        lambda: np.array(3),
    ],
    ids=["contiguous", "fortran", "strided", "columns", "empty", "objects", "scalar", "zero-dim"],
)
def test_arrays_come_back_equal(make: Callable[[], Any]) -> None:
    """Arrays of every layout come back equal, with dtype and shape."""
    value = make()

    back = there_and_back(value)

    assert value.dtype == back.dtype
    np.testing.assert_array_equal(value, back)


def test_large_buffers_are_views_of_the_original() -> None:
    """A large array is not copied into the pickle: the buffer is its own memory."""
    value = np.arange(1_000_000)

    data, buffers = payload.dumps(((value,), {}))

    assert len(data) < 1000
    assert len(buffers) == 1
    assert np.shares_memory(value, np.frombuffer(buffers[0], dtype=value.dtype))


def test_memoryviews_come_back_as_memoryviews() -> None:
    """A contiguous view arrives as a view of the same format, shape and content."""
    for view in (memoryview(b""), memoryview(array.array("d", range(20_000)))):
        back = there_and_back(view)
        assert (view.format, view.shape, view.tolist()) == (back.format, back.shape, back.tolist())
    assert there_and_back(memoryview(b"abcdef")[::2]) == b"ace"


class Holder:
    def __init__(self, value: object) -> None:
        self.value = value


class Divides:
    def __reduce__(self) -> str:
        return str(1 // 0)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (
            (1, LOCK),
            {},
            r"Argument 2 of train\(\) \(a lock\) cannot be pickled: TypeError: cannot pickle '_thread.lock'",
        ),
        (
            ([1], [2]),
            {"files": [1, LOCK]},
            r"Argument 'files' of train\(\) \(a list\) cannot be pickled: \[1\] of it gives TypeError: cannot pickle",
        ),
        (
            ({"model": Holder({"inner": (1, Holder(LOCK))})},),
            {},
            r"Argument 1 of train\(\) \(a dict\) cannot be pickled: \['model'\].value\['inner'\]\[1\].value of it",
        ),
    ],
    ids=["position", "keyword", "inside"],
)
def test_an_unpicklable_argument_is_named(args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
    """The error says which argument cannot be pickled, which part of it, and why."""
    with pytest.raises(SerializationError, match=said):
        payload.dumps_arguments(args, kwargs, of="train")


def test_an_error_of_a_users_own_reducer_is_the_cause() -> None:
    """Its traceback leads to their code; that of pickle's own refusals leads nowhere."""
    with pytest.raises(SerializationError, match=r"\.value of it gives ZeroDivisionError") as raised:
        payload.dumps_arguments((Holder(Divides()),), {}, of="train")
    with pytest.raises(SerializationError) as refused:
        payload.dumps_arguments((Holder(LOCK),), {}, of="train")

    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert refused.value.__cause__ is None


def test_a_function_with_an_unpicklable_variable_is_named() -> None:
    """A function is refused with its name and what to do."""
    lock = threading.Lock()

    def train() -> bool:
        return lock.locked()

    with pytest.raises(
        SerializationError, match=r"train\(\) cannot be pickled: lock, which it uses, gives TypeError.*inside the f"
    ):
        payload.dumps_function(train)


def test_a_decorated_function_of_a_module_travels_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function under a decorator that keeps it as `.fn` is found there again: it shares its module's globals."""
    module = types.ModuleType("trainer")
    exec("calls = []\ndef train():\n    calls.append(1)\n    return len(calls)", vars(module))
    inner = module.train
    module.__dict__["train"] = types.SimpleNamespace(fn=inner)
    monkeypatch.setitem(sys.modules, "trainer", module)

    assert inner is payload.loads(payload.dumps_function(inner)[1])


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a node the error says what to add to the image; elsewhere, what to install."""
    data = b"cno_such_package.module\nThing\n."

    with pytest.raises(SerializationError, match=r"needs the module 'no_such_package', which is not installed here"):
        payload.loads(data)
    monkeypatch.setenv("COMPUTE_POOL", "{}")
    with pytest.raises(
        SerializationError, match=r"The image has no module 'no_such_package': .*Image\(pip=\[...\]\)"
    ) as caught:
        payload.loads(data, what="Function train()")

    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_the_collector_runs_again_after_a_large_load() -> None:
    """Loading pauses the cyclic collector and switches it on again, also on failure; it stays off where it was."""
    data, _ = payload.dumps([gc.isenabled, [[i] for i in range(50_000)], Asks()])

    assert payload.loads(data)[2] is False
    assert gc.isenabled()
    with pytest.raises(SerializationError):
        payload.loads(data[:-2])
    assert gc.isenabled()
    gc.disable()
    try:
        payload.loads(data)
        assert not gc.isenabled()
    finally:
        gc.enable()


class Asks:
    """Unpickles to whether the cyclic collector runs meanwhile."""

    def __reduce__(self) -> Any:
        return gc.isenabled, ()


@pytest.mark.parametrize("how", ["memmap", "plain", "small"])
def test_arrays_that_may_not_be_changed_arrive_so(tmp_path: Path, how: str) -> None:
    """As they would be refused to change here, they are there; their values are the same."""
    whole = np.arange(40_000.0)
    whole.tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", dtype=float, mode="r")
    arrays = {
        "memmap": mapped,
        "plain": whole.copy(),
        "small": whole[:5].copy(),
    }
    array = arrays[how]
    array.flags.writeable = False
    data, buffers = payload.dumps((array, "beside it"))
    arrived, _ = payload.loads(data, [bytearray(buffer) for buffer in buffers])
    assert np.array_equal(arrived, array)
    assert not arrived.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        arrived[0] = 1.0
