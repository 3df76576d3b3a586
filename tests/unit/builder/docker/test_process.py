"""A build command, as far as it is any command."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from skyward.builder.docker import command
from skyward.builder.docker.output import Progress
from skyward.errors import EngineMissingError


def test_a_command_ends_when_its_engine_no_longer_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for ever; what it has started ends as well."""
    monkeypatch.setattr(command, "_SILENCE_S", 0.05)
    asked = []

    def alive() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise EngineMissingError("The engine is frozen.")

    with pytest.raises(EngineMissingError, match="frozen"):
        command.run(
            ["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60"],
            Progress((), print),
            folder=tmp_path,
            environment=os.environ,
            alive=alive,
        )
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
