"""A build command, as far as it is any command."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from skyward.builder.docker import command
from skyward.errors import EngineMissingError


class Quiet:
    """Takes what the command says."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def feed(self, line: str) -> None:
        self.lines.append(line)

    def quiet(self) -> None: ...


def run(script: str, folder: Path, **more: object) -> tuple[int, list[str]]:
    progress = Quiet()
    code = command.run(["sh", "-c", script], progress, folder=folder, environment=os.environ, **more)  # type: ignore[arg-type]
    return code, progress.lines


def test_a_command_ends_when_its_engine_no_longer_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever; what it has started ends as well."""
    monkeypatch.setattr(command, "_SILENCE_S", 0.05)
    asked = []

    def alive() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise EngineMissingError("The engine is frozen.")

    with pytest.raises(EngineMissingError, match="frozen"):
        run(f"echo $$ >{tmp_path}/pid; exec sleep 60", tmp_path, alive=alive)
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_silent_command_is_waited_for_while_its_engine_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_QUIET_S", 0.01)
    monkeypatch.setattr(command, "_SILENCE_S", 0.02)
    asked = list[int]()

    assert run("sleep 0.2; echo done", tmp_path, alive=lambda: asked.append(1)) == (0, ["done", ""])
    assert asked
