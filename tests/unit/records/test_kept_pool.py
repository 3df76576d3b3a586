"""The record of a pool with a name, and the claim on the name."""

from __future__ import annotations

import os
import signal
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from skyward.errors import PoolError
from skyward.records.kept_pool import KeptNode, KeptPool, PoolLock

HOLDER = "train.py (process 5, since 12:00:00)"
NODE = KeptNode(index=1, key="00ff", agent="unix:agent.sock", shape={"image": "a"}, about={"directory": "/x"})
POOL = KeptPool(name="warm", pool="1f2e3d4c", provider="Local()", nodes=(NODE,))


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Only its owner can read it: it holds keys."""
    record = replace(POOL, until=5.0).with_node(replace(NODE, index=0)).with_node(replace(NODE, key="11"))
    record.write(tmp_path)
    assert KeptPool.read(tmp_path) == record
    assert [(node.index, node.key) for node in record.nodes] == [(0, "00ff"), (1, "11")]
    assert stat.S_IMODE((tmp_path / "pool.json").stat().st_mode) == 0o600
    assert "00ff" not in repr(record)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": 5}', '{"nodes": [{}]}'])
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    """Such as that of another version."""
    assert KeptPool.read(tmp_path) is None
    (tmp_path / "pool.json").write_text(text)
    assert KeptPool.read(tmp_path) is None


def test_a_record_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lead to nodes of that user's, as where a program runs by sudo with the caller's home."""
    POOL.write(tmp_path)
    assert KeptPool.read(tmp_path) == POOL
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert KeptPool.read(tmp_path) is None


def test_one_has_the_name_at_a_time(tmp_path: Path) -> None:
    """The others learn who; it is free when that one lets go."""
    first, second = PoolLock(tmp_path / "pools" / "warm"), PoolLock(tmp_path / "pools" / "warm")
    assert first.acquire(wait=False, holder=HOLDER)
    assert not second.acquire(wait=False)
    assert second.holder() == HOLDER
    first.release()
    first.release()
    assert second.acquire(wait=False)
    assert stat.S_IMODE((tmp_path / "pools" / "warm").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "pools").stat().st_mode) == 0o700
    second.release()


def test_a_forked_process_has_no_claim(tmp_path: Path) -> None:
    """It closes its copy, and the name stays with its parent; or its parent lets go, and the name is free."""
    lock, other = PoolLock(tmp_path / "warm"), PoolLock(tmp_path / "warm")
    assert lock.acquire(wait=False)
    if (child := os.fork()) == 0:
        lock.let_go()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not other.acquire(wait=False)
    if (child := os.fork()) == 0:
        signal.pause()
    lock.release()
    try:
        assert other.acquire(wait=False)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    other.release()


def test_a_name_whose_record_cannot_be_written_is_explained(tmp_path: Path) -> None:
    """As for users without a home."""
    (tmp_path / "file").touch()
    with pytest.raises(PoolError, match=r"Pool 'warm' cannot be kept: .*Not a directory.* Set HOME or XDG_STATE_HOME"):
        PoolLock(tmp_path / "file" / "pools" / "warm").acquire(wait=False)
