"""`skyward ps` and `skyward down` on pools of plain processes, found by what they left and not by memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward as sky
from skyward.cli.main import main


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Docker engine, which is no error: then nothing can run on one."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def test_pools_are_listed_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """Node by node; one pool is ended, the other goes on."""
    with (
        sky.ComputePool(sky.Local(), nodes=2, display="quiet") as ending,
        sky.ComputePool(sky.Local(), display="quiet") as staying,
    ):
        assert main(["ps"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert rows[0] == ["POOL", "NODE", "WHERE", "STATE", "OWNER", "NAME"]
        assert [row[1:4] for row in rows if row[0] == ending.id] == [
            ["0", "local", "running"],
            ["1", "local", "running"],
        ]
        assert main(["down", ending.id]) == 0
        assert capsys.readouterr().out == f"pool {ending.id}: 2 nodes ended at local\n"
        main(["ps"])
        said = capsys.readouterr().out
        assert ending.id not in said
        assert staying.id in said


def test_an_unknown_pool_is_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """That is no failure: what was wanted is so."""
    assert main(["down", "deadbeef"]) == 0
    assert capsys.readouterr().err == "pool deadbeef: nothing of it was found\n"


@pytest.mark.parametrize("words", [["down"], ["down", "--all", "deadbeef"]])
def test_down_wants_pools_or_all(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither and both are mistakes."""
    assert main(words) == 2
    assert "`skyward ps` shows what there is" in capsys.readouterr().err


def test_a_host_that_cannot_be_asked_is_named_and_the_rest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 6; what is known is listed all the same."""
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        assert main(["ps", "--ssh", "no-such-host.invalid"]) == 6
    said = capsys.readouterr()
    assert pool.id in said.out
    assert "skyward: no-such-host.invalid cannot be asked: 1 of 1 hosts cannot be used" in said.err


def test_a_host_that_cannot_be_asked_is_an_error_of_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody may take it for ended."""
    assert main(["down", "deadbeef", "--ssh", "no-such-host.invalid"]) == 6
    assert "What was left may still run:" in capsys.readouterr().err
