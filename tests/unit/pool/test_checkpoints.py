"""What becomes of a commit whose worker is lost in the middle of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skyward._pool.services import Checkpoints
from skyward.system import SimpleQueue
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, decode, encode


class Call:
    """What a task tells of itself."""

    pin = broadcast = None
    done = False


class Worker:
    """The worker's end of a run of a call."""

    def __init__(self, checkpoints: Checkpoints, task: Any) -> None:
        self._checkpoints, self._task = checkpoints, task
        self.answers: SimpleQueue[Frame] = SimpleQueue()
        self.post = self.answers.put

    def ask(self, data: bytes = b"", **asked: Any) -> dict[str, Any]:
        head = encode({"request": 1, "name": "c", "rank": None, **asked})
        connection: Any = self
        self._checkpoints.take(self._task, connection, Frame(Kind.CHECKPOINT, 1, head, [data]))
        return dict(decode(self.answers.get(timeout=60).head))

    def begin_a_file(self) -> None:
        """A part of a commit."""
        self.ask(op="last")
        assert "error" not in self.ask(op="write", offset=0, data=b"part")


@pytest.mark.parametrize("by", ["the next run", "another call", "the end of the pool"])
def test_a_file_that_was_being_written_is_closed(tmp_path: Path, by: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    task = Call()
    Worker(checkpoints, task).begin_a_file()
    (store,) = checkpoints._stores.values()
    file = store._archive
    assert file is not None

    if by == "the next run":
        Worker(checkpoints, task).ask(op="last")
    elif by == "another call":
        task.done = True
        Worker(checkpoints, Call()).ask(op="last")
    else:
        checkpoints.close()

    assert file.closed
    checkpoints.close()


def test_where_the_run_has_no_record_the_parameter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for users without a home."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("SKYWARD_RUN", raising=False)
    monkeypatch.setattr("skyward.records.run._own", None)
    error = Worker(Checkpoints(None), Call()).ask(op="last")["error"]
    assert "cannot be written" in error and "ComputePool(checkpoints=...)" in error
