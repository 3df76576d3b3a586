"""`skyward doctor` where nothing is well: no engine here, and hosts that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skyward.cli.main import main


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def test_what_is_wrong_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each host, then a line for each thing that is wrong; exit status 6."""
    assert main(["doctor", "--at", "ssh://no-such-host.invalid"]) == 6
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["HOST", "ENGINE"]
    assert [line.split()[-1] for line in lines[1:3]] == ["no", "no"]
    assert lines[4].startswith("  this machine          engine  No Docker engine answers at unix://")
    assert lines[5].startswith("  no-such-host.invalid  ssh     ")
    assert "cannot be resolved" in lines[5]


def test_json_has_one_object_for_each_host(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is on standard output."""
    assert main(["doctor", "--json", "--at", "ssh://no-such-host.invalid"]) == 6
    here, there = map(json.loads, capsys.readouterr().out.splitlines())
    assert (here["host"], there["host"]) == ("this machine", "no-such-host.invalid")
    assert [finding["what"] for finding in here["findings"] + there["findings"]] == ["engine", "ssh"]
    assert there["engine"] is None
