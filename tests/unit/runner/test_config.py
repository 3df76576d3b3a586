"""What sets the ranks of one node apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.errors import ConfigError
from skyward.model.instance import KEY_FILE, InstanceInfo
from skyward.runner.config import GPUS_VAR, rank_environment, take_key
from skyward.wire.messages import KEY_BYTES


def place(ranks: int, gpus: int = 0) -> InstanceInfo:
    return InstanceInfo(
        node=1, total_nodes=2, head_addr="10.0.0.1", head_port=29400, accelerators=gpus, workers_per_node=ranks
    )


def shares(ranks: int, gpus: int, environment: dict[str, str]) -> list[str | None]:
    return [rank_environment(place(ranks, gpus), rank, environment).get(GPUS_VAR) for rank in range(ranks)]


def memory(ranks: int, gpus: int, processes: int, environment: dict[str, str]) -> list[tuple[str | None, str | None]]:
    found = [rank_environment(place(ranks, gpus), each, environment, processes) for each in range(processes)]
    return [(each.get("XLA_PYTHON_CLIENT_MEM_FRACTION"), each.get("TF_FORCE_GPU_ALLOW_GROWTH")) for each in found]


@pytest.mark.parametrize(
    ("ranks", "gpus", "processes", "expected"),
    [
        (2, 1, 2, [("0.375", "true")] * 2),
        (3, 2, 3, [("0.375", "true")] * 2 + [(None, None)]),
        (2, 2, 2, [(None, None)] * 2),
        (1, 1, 4, [("0.188", "true")] * 4),
        (1, 4, 2, [("0.375", "true")] * 2),
        (1, 1, 1, [(None, None)]),
        (2, 0, 2, [(None, None)] * 2),
        (1, 0, 2, [(None, None)] * 2),
    ],
)
def test_processes_that_share_a_gpu_share_its_memory(
    ranks: int, gpus: int, processes: int, expected: list[tuple[str | None, str | None]]
) -> None:
    """Ranks, and the processes of executor="process", which all see all of their node's GPUs."""
    assert memory(ranks, gpus, processes, {}) == expected


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"])
def test_what_the_user_says_of_memory_stays(name: str) -> None:
    """Nothing is said beside it."""
    assert memory(2, 1, 2, {name: "0.5", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}) == [(None, None)] * 2


@pytest.mark.parametrize(
    ("ranks", "gpus", "environment", "expected"),
    [
        (4, 4, {}, ["0", "1", "2", "3"]),
        (2, 4, {}, ["0,1", "2,3"]),
        (2, 3, {}, ["0", "1,2"]),
        (4, 2, {}, ["0", "0", "1", "1"]),
        (3, 1, {}, ["0", "0", "0"]),
        (2, 2, {GPUS_VAR: "4,6"}, ["4", "6"]),
        (2, 2, {GPUS_VAR: "GPU-aa, GPU-bb"}, ["GPU-aa", "GPU-bb"]),
        (2, 2, {GPUS_VAR: "5"}, ["5", "5"]),
        (2, 2, {GPUS_VAR: ""}, [None, None]),
        (2, 2, {GPUS_VAR: "-1"}, ["-1", "-1"]),
        (2, 0, {}, [None, None]),
        (2, 0, {GPUS_VAR: "0,1"}, [None, None]),
    ],
)
def test_gpus_are_dealt_out(ranks: int, gpus: int, environment: dict[str, str], expected: list[str | None]) -> None:
    """What the node may see is divided, not what the machine has; nodes without GPUs are left alone."""
    assert shares(ranks, gpus, environment) == expected


@pytest.mark.parametrize("count", [0, KEY_BYTES - 1, KEY_BYTES])
def test_the_key_is_whole(count: int, tmp_path: Path) -> None:
    """With an empty one, as of a file that was not written to its end, anybody could connect."""
    (tmp_path / KEY_FILE).write_bytes(b"k" * count)
    if count == KEY_BYTES:
        assert take_key(tmp_path) == b"k" * count
    else:
        with pytest.raises(ConfigError, match=rf"has {count} bytes instead of {KEY_BYTES}\."):
            take_key(tmp_path)
    assert not (tmp_path / KEY_FILE).exists()
