"""How far a transfer is: on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from skyward.cli.runs import transfer


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_gets_a_bar(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal)
    with transfer("fetching results of train", 3_000_000) as count:
        count(1_500_000)

    assert ("skyward: fetching results of train" in screen.getvalue()) is is_terminal
