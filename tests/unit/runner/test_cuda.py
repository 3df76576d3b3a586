"""What is left on a GPU by calls that fail, with a stand-in for PyTorch in the worker."""

from __future__ import annotations

import pytest

from skyward.runner import process
from skyward.wire.messages import Kind
from tests.unit.runner.node import RunningNode

ASSERTION = "CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions."
TORCH = """
import sys, types
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: given_back())
sys.modules["torch"] = torch
"""


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
def test_a_process_whose_cuda_is_broken_is_replaced(node: RunningNode, ending: str) -> None:
    """It sends the error and then says so; a fresh process listens."""
    client = node.client()
    node.do(f"{TORCH}\ndef given_back(): raise RuntimeError({ASSERTION!r})")
    node.do(ending)
    (connection,) = node._workers.values()

    kinds: list[int] = []
    while Kind.STALE not in kinds:
        frames = connection.receive()
        assert frames
        kinds += [frame.kind for frame in frames]

    assert kinds == [Kind.RESULT, Kind.ERROR, Kind.STALE]
    assert client.document(Kind.WORKER_UP)["generation"] == 1
