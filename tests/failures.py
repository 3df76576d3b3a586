"""Failures shown as they happen, one line each; and an early end where too many tests fail.

pytest prints its tracebacks at the end. A run that is cut off before its end, by a time limit of whoever started it,
would otherwise have shown letters alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

LIMIT = 300  # characters of a line


class FailureLines:
    """Prints a line for each failure and error.

    It belongs to the process that reports.

    Args:
        stop_file: made when `--maxfail` is reached. Unless they are told, processes of pytest-xdist go on with all
            tests that they were given, which can be those of many minutes.
    """

    def __init__(self, config: pytest.Config, stop_file: Path) -> None:
        self._config, self._stop_file = config, stop_file
        self._count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._show(report, report.when)
            self._count_failure()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._show(report, "collection")
            self._count_failure()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process of pytest-xdist where to look."""
        node.workerinput["stop_file"] = str(self._stop_file)

    def _show(self, report: pytest.TestReport | pytest.CollectReport, when: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line("FAILED", report.nodeid, when, reason(report)))
            terminal.flush()  # who reads a pipe sees it now, and not with the next 8 KiB

    def _count_failure(self) -> None:
        self._count += 1
        if self._count == self._config.getvalue("maxfail"):
            self._stop_file.touch()


class EarlyEnd:
    """Ends a process of pytest-xdist after its present test, once too many tests have failed in all of them."""

    def __init__(self, stop_file: Path) -> None:
        self._stop_file = stop_file
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logfinish(self) -> None:
        if self._session and self._stop_file.exists():
            self._session.shouldstop = "too many tests have failed"


def register(config: pytest.Config, folder: tempfile.TemporaryDirectory[str]) -> None:
    """Add what this process needs of both.

    Args:
        folder: one that is there until the run ends.
    """
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(EarlyEnd(Path(config.workerinput["stop_file"])))
    else:
        config.pluginmanager.register(FailureLines(config, Path(folder.name) / "stop"))


def line(outcome: str, test: str, when: str, why: str) -> str:
    """One line about one failure."""
    text = f"{outcome} {test} ({when}): {why}"
    return text if len(text) <= LIMIT else text[: LIMIT - 1] + "…"


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of what was raised; for what has no such line, such as a missing fixture, the last of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().split("\n", 1)[0]
    lines = [each.strip() for each in str(report.longrepr).splitlines() if each.strip()]
    return next((each.removeprefix("E").strip() for each in lines if each.startswith("E ")), lines[-1] if lines else "")
