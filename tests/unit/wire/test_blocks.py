"""Memory for large payloads is used again when nobody views it, and never while anybody does."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from skyward.wire import frames

MB = 1 << 20


@pytest.fixture(autouse=True)
def _no_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frames, "_blocks", [])
    yield


def place(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def test_a_block_that_nobody_views_is_used_again() -> None:
    """The same memory, for the same size and for a smaller one of more than half."""
    first = frames.allocate(4 * MB)
    where = place(first)
    del first
    again = frames.allocate(3 * MB)
    assert (place(again), len(again)) == (where, 3 * MB)


def test_a_block_that_anybody_views_is_left_alone() -> None:
    """A view of a part, an array, an array out of a pickle: each keeps the block."""
    for keep in (
        lambda view: view[5:6],
        lambda view: np.frombuffer(view, dtype=np.uint8)[7:],
        lambda view: pickle.loads(
            pickle.dumps(np.zeros(4 * MB, dtype=np.uint8), 5, buffer_callback=lambda _: None), buffers=[view]
        ),
    ):
        view = frames.allocate(4 * MB)
        where, kept = place(view), keep(view)
        del view
        assert place(frames.allocate(4 * MB)) != where
        del kept
        frames._blocks.clear()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, though it may be in use; what is larger than the bound is never kept."""
    monkeypatch.setattr(frames, "_KEPT", 10 * MB)
    views = [frames.allocate(4 * MB) for _ in range(4)]
    assert len(frames._blocks) == 2
    views.append(frames.allocate(11 * MB))
    assert frames._blocks == []
    views[0][:] = b"x" * len(views[0])  # still good
