"""`skyward ps` and `skyward down` on pools of plain processes, found by what they left and not by memory."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.cli.main import main
from skyward.nodes.process_id import current_user
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Docker engine, which is no error: then nothing can run on one."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr("skyward.cli.places.recorded", dict)


def test_pools_are_listed_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """Node by node; one pool is ended, the other goes on."""
    with (
        sky.ComputePool(sky.Local(), nodes=2, display="quiet") as ending,
        sky.ComputePool(sky.Local(), display="quiet") as staying,
    ):
        assert main(["ps"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert rows[0][:6] == ["POOL", "NODE", "WHERE", "STATE", "OWNER", "NAME"]
        assert [row[1:4] for row in rows if row[:1] == [ending.id]] == [
            ["0", "local", "running"],
            ["1", "local", "running"],
        ]
        assert main(["down", ending.id]) == 0
        assert capsys.readouterr().out == f"pool {ending.id}: 2 nodes ended at local\n"
        main(["ps"])
        said = capsys.readouterr().out
        assert ending.id not in said
        assert staying.id in said


def test_what_nodes_use_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Cores and bytes of each, soon after the pool has opened."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:

        def used() -> list[list[str]]:
            main(["ps"])
            heading, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
            return [row[6:] for row in rows if row[:1] == [pool.id] and heading[6:8] == ["CPU", "MEM"]]

        wait_until(lambda: len(used()) == 2 and all(re.fullmatch(r"[\d.]+ [\d.]+MB", " ".join(row)) for row in used()))
        main(["ps", "--json"])
        nodes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert all(each["memory"] > 1_000_000 for each in nodes if each.get("pool") == pool.id)


@pytest.mark.parametrize("words", [[], ["--all", "deadbeef"], [""], ["deadbeef", " "], ["--yes", "deadbeef"]])
def test_down_wants_pools_or_all(words: list[str]) -> None:
    """Neither and both are mistakes, and so is an empty name: a variable of a shell that has no value."""
    assert main(["down", *words]) == 2


def test_both_commands_tell_everything_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object per line, and nothing else on standard output. The beginning of a name ends nothing."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        assert main(["ps", "--json"]) == 0
        told = events(capsys.readouterr().out)
        assert [
            (each["event"], each["where"], each["node"], each["state"]) for each in told if each.get("pool") == pool.id
        ] == [
            ("node", "local", 0, "running"),
            ("node", "local", 1, "running"),
        ]
        assert main(["down", pool.id[:-1], "--json"]) == 1
        assert events(capsys.readouterr().out) == [{"event": "absent", "pool": pool.id[:-1]}]
        assert main(["down", pool.id, "--json"]) == 0
        assert events(capsys.readouterr().out) == [{"event": "ended", "pool": pool.id, "where": "local", "nodes": 2}]


@pytest.mark.parametrize("command", [["ps"], ["down", "deadbeef"]])
def test_a_place_that_cannot_be_asked_is_an_event_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 6, and who reads the output alone learns of it."""
    assert main([*command, "--at", "ssh://no-such-host.invalid"]) == 6
    said = "no-such-host.invalid did not answer: no-such-host.invalid cannot be used"
    assert said in capsys.readouterr().err
    assert main([*command, "--json", "--at", "ssh://no-such-host.invalid"]) == 6
    (told,) = (each for each in events(capsys.readouterr().out) if each["event"] == "error")
    assert (told["where"], told["kind"]) == ("no-such-host.invalid", "ProviderError")
    assert "no-such-host.invalid cannot be used" in told["message"]


def test_what_is_rented_is_shown_with_its_cost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per hour and so far; a price that nobody knew is none, and is in no sum."""
    machine = {"pool": "1a2b3c4d", "state": "running", "owner": "7@laptop"}
    found = [
        {**machine, "node": 0, "name": "i-1", "hourly": 0.031, "cost": 0.0155},
        {**machine, "node": 1, "name": "i-2", "hourly": 0.031, "cost": 0.0155},
        {**machine, "node": 2, "name": "i-3", "hourly": None, "cost": None},
        {**machine, "node": -1, "name": "sg-1"},
    ]
    monkeypatch.setattr(sky.AWS, "find", lambda _: found)
    assert main(["ps", "--at", "aws://us-east-1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][-2:] == ["USD/HOUR", "USD"]
    assert [[row[5], *row[-2:]] for row in rows if row[:1] == ["1a2b3c4d"]] == [
        ["sg-1", "-", "-"],
        ["i-1", "0.031", "0.015"],
        ["i-2", "0.031", "0.015"],
        ["i-3", "-", "-"],
    ]
    assert "rented: 0.062 USD per hour, 0.031 USD so far, at the prices of their launches" in map(" ".join, rows)


class Terminal(io.StringIO):
    """Somebody at a terminal, who has typed this."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three users' pools on an engine, and nothing elsewhere; what is ended of them."""
    ended: list[str] = []
    found = [
        {"pool": pool, "node": node, "name": f"{pool}-{node}", "state": "running", "owner": "7@laptop", "user": user}
        for pool, user, nodes in (("mine", current_user(), 2), ("hers", "ann@laptop", 1), ("nobodys", "", 1))
        for node in range(nodes)
    ]
    monkeypatch.setattr(sky.Docker, "find", lambda _: found)
    monkeypatch.setattr(sky.Docker, "destroy", lambda _, pool: ended.append(pool))
    monkeypatch.setattr(sky.Local, "find", lambda _: [])
    return ended


def test_all_is_all_of_this_user(ended: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Others' pools, and those of which no label says whose they are, are left alone, and counted."""
    assert main(["down", "--all", "--yes"]) == 0
    assert ended == ["mine"]
    said = capsys.readouterr()
    assert said.out == "pool mine: 2 nodes ended at docker\n"
    assert said.err.count("left alone (--everyone)") == 2
    assert main(["down", "--all", "--yes", "--json"]) == 0
    assert events(capsys.readouterr().out) == [
        {"event": "spared", "pool": "hers", "where": "docker", "user": "ann@laptop"},
        {"event": "spared", "pool": "nobodys", "where": "docker", "user": ""},
        {"event": "ended", "pool": "mine", "where": "docker", "nodes": 2},
    ]


def test_everyones_pools_are_ended_when_that_is_said(ended: list[str]) -> None:
    """And a pool that is named is ended whoever it is of."""
    assert main(["down", "--all", "--everyone", "--yes"]) == main(["down", "hers"]) == 0
    assert ended == ["hers", "mine", "nobodys", "hers"]


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 130), ("\n", 130), ("", 130)])
def test_all_shows_what_it_ends_and_asks(
    answer: str, status: int, ended: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is not a yes is a no."""
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["down", "--all"]) == status
    heading, row, question, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["POOL", "NODES", "WHERE", "USER"]
    assert row.split() == ["mine", "2", "docker", current_user()]
    assert question.startswith("End these? [y/N]")
    assert ended == (["mine"] if status == 0 else [])


@pytest.mark.parametrize("more", [[], ["--everyone"], ["--json"]])
def test_all_ends_nothing_where_nobody_can_be_asked(
    more: list[str], ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in a script, which must say --yes; a closed input is not a terminal either."""
    for no_terminal in (io.StringIO("y\n"), None):
        monkeypatch.setattr("sys.stdin", no_terminal)
        assert main(["down", "--all", *more]) == 2
    assert ended == []


def test_a_pool_in_which_two_users_have_parts_is_nobodys(ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends another's nodes because one of them bears the own name."""
    users = current_user(), "ann@laptop"
    found = [{"pool": "both", "node": node, "name": f"both-{node}", "user": user} for node, user in enumerate(users)]
    monkeypatch.setattr(sky.Docker, "find", lambda _: found)
    assert main(["down", "--all", "--yes"]) == 0
    assert ended == []


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
