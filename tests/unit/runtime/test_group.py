"""`gather` where there is nobody to gather with, and where it cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.runtime import ranks as group


def place(nodes: int, ranks: int = 1) -> str:
    return InstanceInfo(
        node=0, total_nodes=nodes, head_addr="127.0.0.1", head_port=29400, workers_per_node=ranks
    ).to_json()


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 1), (1, 2)])
def test_several_ranks_gather_through_their_worker(monkeypatch: pytest.MonkeyPatch, nodes: int, ranks: int) -> None:
    """Whether they are on one node or on several."""
    asked: list[tuple[Any, ...]] = []

    def exchange(*question: Any) -> list[str]:
        asked.append(question)
        return ["a", "b"]

    monkeypatch.setenv(ENV_VAR, place(nodes, ranks))
    monkeypatch.setattr(group, "_client", exchange)

    assert group.gather("a", name="port", timeout_s=3) == ["a", "b"]
    assert asked == [("a", "port", 3)]


def test_a_process_that_is_no_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the worker's environment, but nobody to send its value."""
    monkeypatch.setenv(ENV_VAR, place(2))
    monkeypatch.setattr(group, "_client", None)

    with pytest.raises(PluginError, match=r"gather\('port'\) was called in a process that a worker has started"):
        group.gather(3, name="port")


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": 3}, {"name": "port", "timeout_s": 0}])
def test_a_gather_has_a_name_and_a_sensible_limit(wrong: dict[str, Any]) -> None:
    """Also where nobody else is there, so that a mistake shows before there are nodes."""
    with pytest.raises(ConfigError, match="gather"):
        group.gather(1, **wrong)
