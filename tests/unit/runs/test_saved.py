"""`sky.save`, `sky.output_folder` and `skyward result` on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyward as sky
from skyward.cli.main import main
from skyward.errors import ConfigError, PoolError
from skyward.model.instance import ENV_VAR
from tests.unit.runs.conftest import Start


@pytest.fixture
def train(start: Start, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has ended, to which this process belongs now."""
    start("train-1").wait()
    monkeypatch.setenv("SKYWARD_RUN", str(runs / "train-1"))
    return runs / "train-1"


def told(out: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, out.splitlines()) if each["event"] == kind]


def test_what_is_saved_is_shown_and_fetched(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values in formats that every program reads, and files of the output folder."""
    sky.save("losses", [0.5, np.float32(0.25)])
    sky.save("name", "ümläut\n")
    sky.save("weights", np.arange(6.0).reshape(2, 3))
    sky.save("blob", b"\x80\0")
    (sky.output_folder() / "epochs").mkdir()
    (sky.output_folder() / "epochs" / "1.txt").write_text("one")

    assert main(["result", "train-1"]) == 0
    said = capsys.readouterr()
    assert "skyward: train-1 ended with status 0" in said.err
    assert [line.split()[0] for line in said.out.splitlines()] == [
        *("VALUE", "blob", "losses", "name", "weights"),
        *("FILE", "epochs/1.txt"),
    ]
    assert "array" in said.out

    assert main(["result", "train-1", "--into", str(tmp_path / "got"), "--json"]) == 0
    out = capsys.readouterr().out
    assert {each["name"]: each.get("value") for each in told(out, "value")} == {
        "blob": None,
        "losses": [0.5, 0.25],
        "name": "ümläut\n",
        "weights": None,
    }
    assert told(out, "file") == [{"event": "file", "run": "train-1", "path": "epochs/1.txt", "size": 3}]
    assert (tmp_path / "got" / "saved" / "blob.bin").read_bytes() == b"\x80\0"
    assert np.array_equal(np.load(tmp_path / "got" / "saved" / "weights.npy"), np.arange(6.0).reshape(2, 3))
    assert (tmp_path / "got" / "files" / "epochs" / "1.txt").read_text() == "one"
    assert {path.stat().st_mode & 0o077 for path in (train / "saved").iterdir()} == {0}


def test_numbers_that_json_does_not_have_are_strings(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `--json` prints is read by every parser of JSON. A later value replaces an earlier one of another kind."""
    sky.save("losses", b"2")
    sky.save("losses", [float("nan"), {"best": float("inf"), "worst": float("-inf")}, 0.5])

    assert [path.name for path in (train / "saved").iterdir()] == ["losses.json"]
    assert main(["result", train.name, "--json"]) == 0
    (value,) = told(capsys.readouterr().out, "value")
    assert value["value"] == ["NaN", {"best": "Infinity", "worst": "-Infinity"}, 0.5]


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array([object()]), lambda: None, {("a", "b"): 1}])
def test_what_could_hold_code_is_refused(value: object, train: Path) -> None:
    with pytest.raises(ConfigError, match=r"stores JSON values|cannot store arrays of objects"):
        sky.save("x", value)
    assert not list((train / "saved").iterdir())


def test_functions_on_nodes_return_what_they_have(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no record there."""
    assert train.is_dir()
    monkeypatch.setenv(ENV_VAR, "{}")
    for call in (lambda: sky.save("x", 1), sky.output_folder):
        with pytest.raises(PoolError, match="Return the value"):
            call()
