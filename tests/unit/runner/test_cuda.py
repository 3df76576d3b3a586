"""What is left on a GPU by calls that fail, with a stand-in for PyTorch in the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skyward.runner import process
from skyward.wire import handshake, payload
from skyward.wire.frames import Connection, Frame, dial
from skyward.wire.messages import CALL_HEAD, RESULT_HEAD, Kind
from tests.unit.runner.node import PLACE, Pid, RunningNode, Start

ASSERTION = "CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions."
TORCH = """
import sys, types
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: given_back())
sys.modules["torch"] = torch
"""


class Caller:
    """A client of the node's worker that runs source code in it, and keeps all that it says."""

    def __init__(self, node: RunningNode) -> None:
        sock = dial(node.run_dir, "unix:w0.0.sock")
        self.connection: Connection = handshake.connect(sock, node.key, handshake.worker_endpoint(PLACE.node, 0, 0))
        self.connection.send(Frame(Kind.FUNCTION, 1, payload.dumps_function(run)[1]))
        self._frames: list[Frame] = []

    def start(self, call: int, source: str) -> None:
        data, _ = payload.dumps(((source,), {}))
        self.connection.send(Frame(Kind.CALL, call, CALL_HEAD.pack(1, 0) + data))

    def next(self) -> Frame | None:
        """The next message but output; None at the end of the connection."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.kind != Kind.OUTPUT:
                    return frame
            frames = self.connection.receive()
            if not frames:
                return None
            self._frames += frames

    def answer(self, call: int, source: str) -> Any:
        """The result, or the error, of source code that is run as a call."""
        self.start(call, source)
        frame = self.next()
        assert frame is not None
        return told(frame)


@pytest.fixture
def call() -> Iterator[Callable[[RunningNode], Caller]]:
    """Makes the client of a node."""
    made: list[Caller] = []

    def connect(node: RunningNode) -> Caller:
        made.append(Caller(node))
        return made[-1]

    yield connect
    for caller in made:
        caller.connection.close()


def run(source: str) -> Any:
    """Run in the worker; `result` is what the source code sets."""
    import __main__

    space = vars(__main__)
    space["result"] = None
    exec(source, space)
    return space["result"]


def told(frame: Frame) -> Any:
    head = memoryview(frame.head)[RESULT_HEAD.size :]
    assert frame.kind in (Kind.RESULT, Kind.ERROR), frame.kind
    return payload.loads(head, frame.buffers) if frame.kind == Kind.RESULT else payload.load_exception(head)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(ASSERTION),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"),
        type("AcceleratorError", (RuntimeError,), {})("CUDA error: misaligned address"),
    ],
)
def test_errors_after_which_cuda_works_no_more(error: Exception) -> None:
    """They are known by their text, also below an error of the function's own."""
    own = ValueError("the model diverged")
    own.__cause__ = error

    assert process.breaks_device(error)
    assert process.breaks_device(own)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: invalid device ordinal"),
        ValueError(ASSERTION),
        RuntimeError("unspecified launch failure of a rocket"),
    ],
)
def test_errors_that_pass(error: Exception) -> None:
    """Too little memory and the like end nothing; nor does what only sounds like it."""
    error.__cause__ = error

    assert not process.breaks_device(error)


@pytest.mark.parametrize(
    "ending",
    [
        f"raise RuntimeError({ASSERTION!r})",
        "raise ValueError('a kernel is still queued')",
    ],
    ids=["its own", "found when memory is given back"],
)
def test_a_process_whose_cuda_is_broken_is_replaced(
    start: Start, call: Callable[[RunningNode], Caller], ending: str
) -> None:
    """It tells the error and says so, and ends; a fresh process listens."""
    node = start()
    node.ready()
    agent = node.client()
    caller = call(node)
    broken = f"def given_back(): raise RuntimeError({ASSERTION!r})"
    pid = caller.answer(1, TORCH + broken + "\nimport os\nresult = os.getpid()")
    handle = Pid(pid)

    caller.start(2, ending)

    first, second = caller.next(), caller.next()
    assert first is not None
    assert second is not None
    assert type(told(first)).__name__ in ending
    assert (second.kind, second.id) == (Kind.STALE, 2)
    assert handle.ends()
    assert agent.document(Kind.WORKER_UP)["generation"] == 1
