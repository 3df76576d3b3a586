"""How far a transfer is: the same words for results of runs and for copies, once it takes longer."""

from __future__ import annotations

import io
import sys

import pytest

from skyward.cli import runs
from skyward.cli.runs import Transfer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    monkeypatch.setattr(runs, "_QUIET_S", 0.0)
    monkeypatch.setattr(runs, "_LINE_S", 0.0)
    monkeypatch.setattr(runs, "_BAR_S", 0.0)


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What is done, how much of it, of how much; never more than all, as a stream has headers as well."""
    with Transfer("copying into node 1 of pool p (n)") as transfer:
        transfer.total = 3_000_000
        transfer.advance(1_000_000)
        transfer.advance(3_000_000)

    assert capsys.readouterr().err.splitlines() == [
        "skyward: copying into node 1 of pool p (n): 1 MB of 3 MB",
        "skyward: copying into node 1 of pool p (n): 3 MB of 3 MB",
    ]


def test_what_is_soon_done_is_not_worth_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a line nor a bar."""
    monkeypatch.setattr(runs, "_QUIET_S", 60.0)
    monkeypatch.setattr(runs, "_LINE_S", 60.0)
    with Transfer("fetching results of train", 10) as transfer:
        transfer.advance(10)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same words before it."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Transfer("fetching results of train", 3_000_000) as transfer:
        transfer.advance(1_500_000)

    assert "skyward: fetching results of train" in screen.getvalue()
    assert "1.5/3.0 MB" in screen.getvalue()
