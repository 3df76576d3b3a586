"""How far a transfer is: on a terminal, once it takes longer."""

from __future__ import annotations

import io
import sys

import pytest

from skyward.cli import runs
from skyward.cli.runs import Transfer


class _Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("terminal", "quiet_s", "is_shown"), [(True, 0, True), (True, 600, False), (False, 0, False)])
def test_a_terminal_gets_a_bar(terminal: bool, quiet_s: float, is_shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(runs, "_QUIET_S", quiet_s)
    monkeypatch.setattr(sys, "stderr", screen := _Screen(terminal))
    with Transfer("fetching results of train", 3_000_000) as transfer:
        transfer.advance(1_500_000)

    assert ("skyward: fetching results of train" in screen.getvalue()) is is_shown
