"""What travels between client and nodes: arguments, functions, results."""

from __future__ import annotations

import array
import gc
import io
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skyward.errors import SerializationError
from skyward.wire import payload

LOCK = threading.Lock()


def there_and_back(value: Any) -> Any:
    data, buffers = payload.dumps(value)
    return payload.loads(data, [bytearray(b) for b in buffers])


@pytest.mark.parametrize(
    "value",
    [
        ((), {}),
        ((1, 2.5, "x", b"y", None, True, 1j), {"key": [1, {"a": (2,)}]}),
        {1: "int keys"},
        list(range(1000)),
        {"deep": [[[[[[1]]]]]]},
        "text" * 100_000,
        {1, 2},
        range(3),
    ],
    ids=lambda value: str(value)[:20],
)
def test_plain_values_come_back_equal(value: Any) -> None:
    """Built-in values of any size and depth come back equal and of the same type."""
    back = there_and_back(value)

    assert value == back
    assert type(value) is type(back)


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


def test_small_buffers_stay_in_the_pickle() -> None:
    """A small array costs no separate buffer."""
    assert payload.dumps(np.arange(100))[1] == []


def test_large_byte_strings_are_views_of_the_original() -> None:
    """A large byte string is not copied into the pickle, however deep it lies."""
    value = bytes(range(256)) * 10_000

    data, buffers = payload.dumps([{"file": (value,)}])

    assert len(data) < 200
    assert [buffer.obj is value for buffer in buffers] == [True]
    assert payload.loads(data, [bytearray(buffers[0])]) == [{"file": (value,)}]


@pytest.mark.parametrize(
    "value",
    [
        b"x" * 5_000_000,
        [b"a" * 2_000_000, "b" * 2_000_000, bytearray(b"c" * 2_000_000), b"", b"d" * 100_000],
        {"array": np.arange(200_000), "bytes": b"e" * 2_000_000, "more": list(range(100_000))},
        [b"f" * 1_500_000] * 3,
    ],
    ids=["alone", "strings", "with array", "shared"],
)
def test_large_values_of_many_kinds_come_back_equal(value: Any) -> None:
    """Byte strings and buffers that stay outside the pickle find their places again."""
    back = there_and_back(value)

    assert type(value) is type(back)
    assert pickle.dumps(value) == pickle.dumps(back)


@pytest.mark.parametrize("size", [10, 100_000])
def test_arrays_are_writable_where_they_were(size: int) -> None:
    """A writable array arrives writable, a read-only one read-only."""
    writable, fixed = np.arange(size), np.arange(size)
    fixed.flags.writeable = False

    back = there_and_back((writable, fixed))

    assert [a.flags.writeable for a in back] == [True, False]


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b"abc"),
        memoryview(bytearray(200_000)),
        memoryview(b""),
        memoryview(array.array("d", range(20_000))),
        memoryview(bytes(range(24))).cast("i", (2, 3)),
    ],
    ids=["small", "large", "empty", "doubles", "matrix"],
)
def test_memoryviews_come_back_as_memoryviews(view: memoryview) -> None:
    """A contiguous view arrives as a view of the same format, shape and content."""
    back = there_and_back(view)

    assert isinstance(back, memoryview)
    assert (view.format, view.shape, view.tolist()) == (back.format, back.shape, back.tolist())


def test_a_view_with_gaps_comes_back_as_its_bytes() -> None:
    """A view that is not contiguous has no buffer to send; its bytes are sent."""
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


def test_an_unpicklable_value_is_named_as_the_caller_says() -> None:
    """The error starts with the caller's name for the object."""
    with pytest.raises(SerializationError, match=r"^The result of train\(\) cannot be pickled: TypeError"):
        payload.dumps(LOCK, what="The result of train()")


def test_a_function_with_an_unpicklable_variable_is_named() -> None:
    """A function is refused with its name and what to do."""
    lock = threading.Lock()

    def train() -> bool:
        return lock.locked()

    with pytest.raises(
        SerializationError, match=r"train\(\) cannot be pickled: lock, which it uses, gives TypeError.*inside the f"
    ):
        payload.dumps_function(train)


def test_a_function_has_a_digest_of_its_content() -> None:
    """Equal functions have equal digests, others have others; the digest has 16 bytes."""

    def make(n: int) -> Callable[[], int]:
        return lambda: n

    first, again, other = (payload.dumps_function(make(n))[0] for n in (1, 1, 2))

    assert first == again != other
    assert len(first) == 16
    assert payload.loads(payload.dumps_function(make(2))[1])() == 2


def test_a_decorated_function_of_a_module_travels_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function under a decorator that keeps it as `.fn` is found there again: it shares its module's globals."""
    module = types.ModuleType("trainer")
    exec("calls = []\ndef train():\n    calls.append(1)\n    return len(calls)", vars(module))
    inner = module.train
    module.__dict__["train"] = types.SimpleNamespace(fn=inner)
    monkeypatch.setitem(sys.modules, "trainer", module)

    assert inner is payload.loads(payload.dumps_function(inner)[1])


def test_functions_of_main_travel_by_value(tmp_path: Path) -> None:
    """A function, and a class it uses, defined in a script can be loaded by a process that does not have the script."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from skyward.wire import payload\n"
        "class Point:\n    def __init__(self, x): self.x = x\n"
        "def double(x): return Point(2 * x)\n"
        "sys.stdout.buffer.write(payload.dumps_function(double)[1])\n"
    )
    data = subprocess.run([sys.executable, script], capture_output=True, check=True).stdout

    assert payload.loads(data)(21).x == 42


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


def test_any_failure_to_load_is_a_serialization_error() -> None:
    """A constructor that raises, or bytes that are no pickle, end in SerializationError."""
    with pytest.raises(SerializationError, match="cannot be unpickled here: UnpicklingError"):
        payload.loads(b"garbage")


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


# exceptions


def test_the_pickles_are_those_of_the_standard_protocol() -> None:
    """What is dumped is an ordinary protocol 5 pickle."""
    data, buffers = payload.dumps(io.BytesIO)

    assert io.BytesIO is pickle.loads(data, buffers=buffers)


@pytest.mark.parametrize("how", ["memmap", "part of a memmap", "broadcast", "strides", "plain", "small"])
def test_arrays_that_may_not_be_changed_arrive_so(tmp_path: Path, how: str) -> None:
    """As they would be refused to change here, they are there; their values are the same."""
    whole = np.arange(40_000.0)
    whole.tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", dtype=float, mode="r")
    arrays = {
        "memmap": mapped,
        "part of a memmap": mapped[::3],
        "broadcast": np.broadcast_to(whole[:10_000], (4, 10_000)),
        "strides": whole[::2].copy()[::2],
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


def test_a_map_of_a_file_is_not_copied_into_the_pickle(tmp_path: Path) -> None:
    """It goes from the page cache to the socket, as large arrays do."""
    np.zeros(100_000).tofile(tmp_path / "values")
    data, buffers = payload.dumps(np.memmap(tmp_path / "values", dtype=float, mode="r"))
    assert len(data) < 1000
    assert sum(buffer.nbytes for buffer in buffers) == 800_000
