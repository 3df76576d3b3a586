"""Nodes as processes that start while their pool is being closed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from skyward.errors import NodeStartError
from skyward.nodes.node import Launch
from skyward.nodes.process import LocalProcess

LAUNCH = Launch(
    pool="0badcafe", node=1, name="skyward-0badcafe-1", image=None, compute_pool="{}", runner="{}", key=b"k" * 32
)


@pytest.mark.parametrize("directory", ["gone", "."])
def test_a_node_that_cannot_be_noted_is_not_started(tmp_path: Path, directory: str) -> None:
    """Nobody would find it: it is an error of the start, and no process is left, nor its pipe."""
    (tmp_path / "process").mkdir()  # where its number is noted
    before = children()

    with pytest.raises(NodeStartError, match=r"Node 1 of pool 0badcafe .* could not be started: "):
        LocalProcess(LAUNCH, tmp_path / directory)

    assert children() <= before


def children() -> set[str]:
    """The processes that this one has started and not reaped; other tests may have left some to a thread."""
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            found |= set((thread / "children").read_text().split())
    return found
