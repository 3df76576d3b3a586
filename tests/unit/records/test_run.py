"""Records of runs: what is written is read again, and names that could leave the directory are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.errors import ConfigError
from skyward.records.run import RunRecord, folder_of, new_id, runs_folder


def test_a_record_is_read_as_it_was_written_and_unknown_fields_are_left_out(tmp_path: Path) -> None:
    record = RunRecord(
        id="train-1", program="train.py", arguments=["--epochs", "3"], started=1.0, directory="/", user="me@here"
    )
    record.write(tmp_path / "new")
    text = (tmp_path / "new/run.json").read_text()

    assert RunRecord.parse(text) == record
    assert RunRecord.parse(text.replace("{", '{"later": 1,', 1)) == record
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", ".hidden", "a\nb", "x" * 100])
def test_what_cannot_be_a_run_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a run"):
        folder_of(name)


@pytest.mark.parametrize(
    ("program", "stem"), [("a/train.py", "train"), ("-m my.module", "my"), ("über run.py", "ber-run"), ("-", "run")]
)
def test_a_run_is_named_after_its_program(program: str, stem: str) -> None:
    assert folder_of(new_id(program)).name.rsplit("-", 1)[0] == stem


def test_without_a_home_records_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user who is a number only, as in many containers: nothing is written into the working directory."""

    def homeless(_name: str) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_state_path", homeless)
    assert runs_folder() == Path("/nonexistent/runs")
    monkeypatch.setattr("platformdirs.user_state_path", lambda _name: Path("~/.local/state/skyward"))
    assert runs_folder() == Path("/nonexistent/runs")
