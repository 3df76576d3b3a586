"""`sky.checkpoint`: what was committed survives workers, nodes and clients, as a whole."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import CheckpointError
from tests.e2e.checkpoint_functions import commits, count, write, write_as_another_rank

Pool = Callable[..., sky.ComputePool]


def test_a_call_goes_on_after_the_loss_of_workers_and_nodes(tmp_path: Path, new_pool: Pool) -> None:
    """Killed in the middle of commits, and with its node; a later pool finds the last commit."""
    with new_pool(nodes=1, checkpoints=tmp_path) as pool:
        number, begun = count("n", 9, (3, -5, 7), 2_000_000) >> pool

    assert number == 9
    assert begun[0] == 0
    assert begun[1] in (2, 3)
    assert begun[2] == 5
    assert begun[3] in (6, 7)
    kept = sorted(path.name for path in (tmp_path / "n").iterdir() if path.is_dir())
    assert len(kept) == 2
    assert (tmp_path / "n" / kept[1] / "n").read_text() == "9"
    with new_pool(nodes=1, checkpoints=tmp_path) as pool:
        assert (commits("n") >> pool)[1]["n"] == "9"
        assert (count("n", 10, ()) >> pool)[0] == 10


def test_each_rank_has_its_own_unless_one_ranks_is_asked_for(pool: sky.ComputePool) -> None:
    name = f"ranks-{pool.id}"

    assert write(name, "a") @ pool == [1, 1]
    assert commits(name) @ pool == [(1, {"text": "a of 0"}), (1, {"text": "a of 1"})]
    assert commits(name, rank=1) @ pool == [(1, {"text": "a of 1"})] * 2
    assert write(name, "b", rank=0) @ pool in ([2, 1], [2, 2])  # rank 1 may begin when rank 0 has committed
    assert commits(name, rank=0) @ pool == [(2, {"text": "b of 0"})] * 2
    assert commits(name) >> pool == (0, {})  # of calls on one rank
    with pytest.raises(CheckpointError, match=r"rank=\d\) is rank \d's; rank \d cannot commit it"):
        write_as_another_rank() @ pool


def test_two_calls_at_once_do_not_share_one(pool: sky.ComputePool) -> None:
    name = f"shared-{pool.id}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        first = write(name, "first", until=listener.getsockname()) > pool
        # the first call has committed, and keeps the checkpoint until the connection is closed
        used = pytest.raises(CheckpointError, match=r"is used by another call of this pool, write\(\) on node")
        with listener.accept()[0], used:
            write(name, "second") >> pool
    assert first.result() == 1
    assert write(name, "third") >> pool == 2


def test_the_run_keeps_checkpoints_unless_a_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_RUN", str(tmp_path / "run"))
    with sky.ComputePool(sky.Local()) as pool:
        assert write("model", "x") >> pool == 1

    folder = tmp_path / "run" / "files" / "checkpoints" / "model"
    assert (folder / "000001" / "text").read_text() == "x of 0"
    assert folder.stat().st_mode & 0o077 == 0


def test_a_client_that_cannot_write_says_so_in_the_function(tmp_path: Path) -> None:
    """What the function gets is an error of its own commit; the pool goes on."""
    with sky.ComputePool(sky.Local(), checkpoints=tmp_path / "c") as pool:
        assert write("a", "x") >> pool == 1
        (tmp_path / "c" / "b").touch()
        with pytest.raises(CheckpointError, match=r"/c/b: .*: "):
            write("b", "x") >> pool
        assert write("a", "x") >> pool == 2
