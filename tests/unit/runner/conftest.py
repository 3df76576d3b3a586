"""Nodes that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.runner.config import RunnerSettings
from tests.unit.runner.node import RunningNode, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a node: `start(lease_s=..., processes=...)`; `env` adds variables."""
    nodes: list[RunningNode] = []

    def _start(env: dict[str, str] | None = None, **settings: float) -> RunningNode:
        wishes = RunnerSettings(**{"lease_s": 30.0, **settings})  # type: ignore[arg-type]
        nodes.append(RunningNode(tmp_path / f"run{len(nodes)}", env or {}, wishes))
        return nodes[-1]

    yield _start
    for node in nodes:
        node.close()


@pytest.fixture
def node(start: Start) -> RunningNode:
    """A node with one worker that is ready."""
    running = start()
    running.ready()
    return running
