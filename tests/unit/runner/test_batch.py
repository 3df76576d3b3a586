"""A worker makes the calls of a batch one after the other, as far as the time goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from skyward.model.instance import InstanceInfo
from skyward.runner import calls as runner_calls
from skyward.runner.calls import Calls
from skyward.runner.threads import Slot
from skyward.wire import batch, payload
from skyward.wire.batch import COUNT
from skyward.wire.frames import Frame
from skyward.wire.messages import BATCH, CALL_HEAD, RESULT_HEAD, Kind

PLACE = InstanceInfo(node=0, total_nodes=1, head_addr="", head_port=0)


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy a batch may be over after one item."""
    monkeypatch.setattr(runner_calls, "_BATCH_S", 60.0)


def answer(fn: Callable[[Any], Any], items: Sequence[Any]) -> tuple[Frame, list[Frame]]:
    """How a worker answers a batch, and what it sends before."""
    calls, sent = Calls(PLACE), list[Frame]()
    calls.keep_function(Frame(Kind.FUNCTION, 1, payload.dumps_function(fn)[1]))
    entries: list[Any] = []
    for item in items:
        batch.add(entries, item, "An item")
    frame = Frame(Kind.CALL, 7, CALL_HEAD.pack(1, BATCH) + batch.dumps(entries))
    return calls.run(frame, Slot(), sent.append), sent


def results(frame: Frame) -> list[Any]:
    assert frame.kind == Kind.RESULT, payload.load_exception(bytes(frame.head[RESULT_HEAD.size :]))
    values = [batch.value_of(each, "A result") for each in batch.loads(frame.head[RESULT_HEAD.size :])]
    assert COUNT.unpack(frame.buffers[0]) == (len(values),)
    return values


def test_results_come_in_the_order_of_the_items() -> None:
    """Of coroutines what they return."""

    async def later(n: int) -> int:
        return n + 1

    assert results(answer(lambda n: n * 2, range(100))[0]) == list(range(0, 200, 2))
    assert results(answer(later, [1, 2])[0]) == [2, 3]


def test_it_answers_with_what_it_has_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an item, never in its midst; and when the results are large."""
    assert results(answer(lambda n: f"{n}" * 40_000, range(9))[0]) == ["0" * 40_000, "1" * 40_000]
    monkeypatch.setattr(runner_calls, "_BATCH_S", 0.0)
    assert results(answer(lambda n: n, [5, 6, 7])[0]) == [5]


def test_an_error_says_which_call_it_is_of() -> None:
    """By the number of those before it; what cannot be pickled is an error as well."""
    frame, _ = answer(lambda n: 1 // (n - 2), range(5))
    assert frame.kind == Kind.ERROR
    assert COUNT.unpack(frame.buffers[0]) == (2,)
    assert isinstance(payload.load_exception(bytes(frame.head[RESULT_HEAD.size :])), ZeroDivisionError)

    frame, _ = answer(lambda n: threading.Lock() if n else n, [0, 1])
    assert (frame.kind, COUNT.unpack(frame.buffers[0])) == (Kind.ERROR, (1,))
