"""Functions in a worker: how many versions of one that has changed it keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyward.model.instance import InstanceInfo
from skyward.runner import calls, process
from skyward.runner.calls import Calls
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import CALL_HEAD, RESULT_HEAD, Kind, encode


class NoSlot:
    """The slot of a call that streams nothing."""


def version(number: int) -> Callable[[], int]:
    return lambda: number


def send(worker: Calls, number: int) -> None:
    """Send version `number`, which replaces the one before it."""
    _, data = payload.dumps_function(version(number))
    asked = (encode({"replaces": number - 1}),) if number > 1 else ()
    worker.keep_function(Frame(Kind.FUNCTION, number, data, asked))


def run(worker: Calls, number: int) -> Frame:
    """How a call of version `number` ends."""
    data, buffers = payload.dumps_arguments((), {}, of="f")
    return worker.run(Frame(Kind.CALL, 1, CALL_HEAD.pack(number, 0) + data, buffers), NoSlot(), lambda _: None)  # type: ignore[arg-type]


def call(worker: Calls, number: int) -> Any:
    """What a call of version `number` returns."""
    frame = run(worker, number)
    assert frame.kind == Kind.RESULT
    return payload.loads(memoryview(frame.head)[RESULT_HEAD.size :], frame.buffers)


def test_so_many_versions_are_kept_for_calls_that_are_on_their_way() -> None:
    """Of a function that changes at each call, the oldest go; the others can still be called."""
    worker, newest = Calls(InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=0)), 100
    for number in range(1, newest + 1):
        send(worker, number)
        assert call(worker, number) == number

    oldest = newest - calls._OLD_FUNCTIONS
    assert len(worker._functions) == calls._OLD_FUNCTIONS + 1
    assert [call(worker, number) for number in (oldest, newest)] == [oldest, newest]
    dropped = run(worker, oldest - 1)
    assert dropped.kind == Kind.ERROR
    assert b"has changed more than 32 times since this call was made" in bytes(dropped.head)


def test_modules_that_the_disk_does_not_take_are_an_error_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of calls whose function is not loaded yet; the others go on, and so does the process."""
    directory = tmp_path / "code"
    monkeypatch.setattr(process, "modules_directory", directory)
    monkeypatch.setattr(sys, "path", [*sys.path])
    directory.write_text("as good as a full disk")
    worker = Calls(InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=0))
    send(worker, 1)
    assert call(worker, 1) == 1
    worker.keep_code(Frame(Kind.CODE, 0, *payload.dumps(((("late.py", b""),), frozenset()))))
    send(worker, 2)
    for _ in range(2):
        assert call(worker, 1) == 1
        failed = run(worker, 2)
        assert failed.kind == Kind.ERROR
        assert isinstance(payload.load_exception(bytes(memoryview(failed.head)[RESULT_HEAD.size :])), OSError)

    directory.unlink()
    assert call(worker, 2) == 2
    assert (directory / "late.py").exists()
