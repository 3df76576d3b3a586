"""Shared parts of the commands on runs: options that say where a run is, printing of output."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from skyward.errors import ConfigError

if TYPE_CHECKING:
    from skyward.runs.find import Run

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def host_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the option for machines where runs may be; the command receives them as `hosts`."""

    @click.option("--at", multiple=True, metavar="PLACE", help="Also on this machine: ssh://user@host.")
    @wraps(command)
    def with_hosts(*args: Any, at: tuple[str, ...], **more: Any) -> int:
        from skyward.providers.at import ssh_at

        hosts = [host for each in at for host in ssh_at(each).hosts]
        return command(*args, hosts=hosts, **more)

    return with_hosts


def seconds_of(text: str) -> float:
    """Return the duration that a string such as "90s", "10m", "2h" or "1d" stands for.

    Raises:
        ConfigError: it is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if not found:
        raise ConfigError(f"A duration is written as 90s, 10m, 2h or 1d; found {text!r}.")
    return float(found[1]) * _UNITS[found[2] or "s"]


def duration_text(seconds: float) -> str:
    """Format a duration for people, such as "41 s", "12 min", "3.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def called(run: Run, command: str) -> str:
    """Return how to call a command on a run from here."""
    where = "" if run.is_known_here else f" --at ssh://{run.where}"
    return f"`skyward {command} {run.name}{where}`"


class Printer:
    """Prints a program's output unchanged, each stream to its own; events, as text or as JSON; and skyward's notes.

    Args:
        as_json: print events, and output, as JSON.
        about: further fields of each JSON object.
    """

    def __init__(self, *, as_json: bool, **about: str) -> None:
        self.as_json, self._about = as_json, about

    def entry(self, fields: Mapping[str, Any]) -> None:
        """Print an entry of a journal of output."""
        if self.as_json:
            self.event("output", "", **fields)
            return
        stream = sys.stderr if fields.get("stream") == "err" else sys.stdout
        stream.buffer.write(str(fields.get("text", "")).encode("utf-8", "replace"))
        stream.flush()

    def note(self, text: str) -> None:
        """Print a note of skyward on standard error."""
        click.echo(f"skyward: {text}", err=True)

    def event(self, event: str, text: str, is_error: bool = True, /, **fields: Any) -> None:
        """Print an event, as a line on standard error or output, or as a JSON object on standard output."""
        if self.as_json:
            click.echo(json.dumps({"event": event, **self._about, **fields}, ensure_ascii=False))
        else:
            click.echo(text, err=is_error)


@contextmanager
def transfer(what: str, total: int = 0) -> Iterator[Callable[[int], None]]:
    """Show the progress of a transfer if standard error is a terminal; yield the function that counts bytes.

    Args:
        what: description of it.
        total: number of bytes; 0 if unknown.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    console = Console(file=sys.stderr, highlight=False)
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(f"skyward: {what}", total=total or None)
        yield lambda count: bar.advance(task, count)
