"""The kernel's count of out-of-memory kills, wherever the cgroup is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.runner.children import OomCounter

V2 = "0::/user.slice/session-1.scope\n"
V1 = "9:name=systemd:/\n4:cpu,cpuacct:/\n3:memory:/docker/abc\n0::/\n"


def _events(kills: int) -> str:
    return f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\n"


def _control(kills: int) -> str:
    return f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        pytest.param(V2, "user.slice/session-1.scope/memory.events", _events, id="v2-on-a-host"),
        pytest.param("0::/\n", "memory.events", _events, id="v2-in-a-container"),
        pytest.param("0::/docker/abc\n", "memory.events", _events, id="v2-path-of-the-host"),
        pytest.param(V1, "memory/docker/abc/memory.oom_control", _control, id="v1-on-a-host"),
        pytest.param(V1, "memory/memory.oom_control", _control, id="v1-in-a-container"),
    ],
)
def test_each_kill_is_seen_once(tmp_path: Path, membership: str, file: str, text: object) -> None:
    """Kills from before the node do not count, and a kill explains one worker's end only."""
    assert callable(text)
    (tmp_path / "membership").write_text(membership)
    counter = tmp_path / "cgroup" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text(2))
    oom = OomCounter(tmp_path / "membership", tmp_path / "cgroup")
    assert not oom.take()
    counter.write_text(text(3))
    assert oom.take()
    assert not oom.take()


@pytest.mark.parametrize("membership", [V2, V1, "", None], ids=["v2", "v1", "empty", "missing"])
def test_a_kernel_that_does_not_tell(tmp_path: Path, membership: str | None) -> None:
    """Without a counter nothing is ever blamed on memory."""
    if membership is not None:
        (tmp_path / "membership").write_text(membership)
    assert not OomCounter(tmp_path / "membership", tmp_path / "cgroup").take()
