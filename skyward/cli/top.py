"""`skyward top`: shows the current load of the open pools of this machine's runs.

With `--json` standard output has one object per line and nothing else: `event` "pool", `run`, and the content of
`pool.stats()`, see `skyward.model.resource`.

Pools write their figures only while a command requests them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skyward._pool.facts import EVERY_S, WATCHED, stats_file
from skyward.cli.output import show_table
from skyward.errors import PoolError
from skyward.model.resource import GpuStats, NodeStats, PoolStats
from skyward.nodes.process_id import ProcessId
from skyward.records.pools import POOLS
from skyward.records.run import RunRecord, runs_folder

if TYPE_CHECKING:
    from rich.table import Table

ANSWER_S = 5.0  # how long to wait for the first figures
_WIDE = 70  # number of columns from which on all figures are shown
Column = tuple[str, Callable[[PoolStats, NodeStats], str], bool]  # heading, value, whether for wide terminals only
_UNITS = ("", "K", "M", "G", "T", "P")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class OpenPool:
    """A pool that a run on this machine may have open."""

    run: str
    folder: Path
    pool: str

    def read(self) -> PoolStats | None:
        """Return its figures; None while there are none."""
        try:
            return PoolStats.from_dict(json.loads(stats_file(self.folder, self.pool).read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def open_pools(name: str | None) -> Iterator[OpenPool]:
    """Yield the pools of runs that appear to be running: all, or those with this identifier or run name."""
    for run, folder in open_runs():
        for each in sorted((folder / POOLS).glob("*")):
            if name is None or name in {each.name, run}:
                yield OpenPool(run, folder, each.name)


def open_runs() -> Iterator[tuple[str, Path]]:
    """Yield the names and directories of the runs on this machine that appear to be running."""
    for path in sorted(runs_folder().glob("*/run.json")):
        if (path.parent / "end.json").exists():
            continue
        try:
            record = RunRecord.parse(path.read_bytes())
        except (OSError, ValueError, TypeError):
            continue  # it is being written or removed
        process = ProcessId.parse(record.process or "")
        if process is None or not process.is_gone():
            yield record.id, path.parent


def figures(
    pools_now: Callable[[], Sequence[OpenPool]], since: float, patience_s: float
) -> list[tuple[OpenPool, PoolStats]]:
    """Return the pools that have written figures since a moment; open pools do so within two seconds.

    Args:
        pools_now: returns the pools to query.
        since: seconds since 1970.
        patience_s: how long to wait for the first figures; the remaining pools get only 2.5 intervals.
    """
    began = time.monotonic()
    while True:
        pools = pools_now()
        watch(pools)
        found = [(pool, stats) for pool in pools if (stats := pool.read()) is not None and stats.at >= since]
        waited_s = time.monotonic() - began
        if len(found) == len(pools) or waited_s > patience_s or (found and waited_s > 2.5 * EVERY_S):
            return found
        time.sleep(_LOOK_S)


def watch(pools: Sequence[OpenPool]) -> None:
    """Request figures for the next seconds."""
    for folder in {pool.folder for pool in pools}:
        try:
            (folder / WATCHED).touch(mode=0o600)
        except OSError:
            continue  # the record is being removed


def utilization(gpus: Sequence[GpuStats]) -> str:
    """Return the mean utilisation of all GPUs that report it."""
    told = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return f"{sum(told) / len(told):.0%}" if told else "-"


def size_text(value: float | None) -> str:
    """Format a number of bytes in four or five characters: "1.2G"; 1K is 1000."""
    if value is None:
        return "-"
    for unit in _UNITS:
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 9.95 and unit else f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.0f}E"


@click.command()
@click.argument("name", metavar="[POOL]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the figures once, as JSON, one pool per line.")
def command(name: str | None, as_json: bool) -> int:
    """Show what the nodes of open pools use and do.

    Calls, processors, memory, GPUs and network. Of all pools that programs of this user on this machine have open,
    or of one: POOL is its identifier, or the name of its run. Live on a terminal, until Ctrl-C; printed once
    elsewhere. Pools are measured while somebody looks only.
    """
    started = time.time()
    pools = _answered(name, started)
    if as_json:
        for pool, stats in pools:
            click.echo(json.dumps({"event": "pool", "run": pool.run, **stats.to_dict()}))
    elif not sys.stdout.isatty():
        show_table(_rows([stats for _, stats in pools], _columns([stats for _, stats in pools], _WIDE)))
    else:
        _show_live(name, [stats for _, stats in pools])
    return 0


def _answered(name: str | None, since: float) -> list[tuple[OpenPool, PoolStats]]:
    """Return the pools that have written figures since a moment, allowing a run that has just started to open one.

    Raises:
        PoolError: the requested one has not.
    """
    deadline = time.monotonic() + ANSWER_S
    while not (found := figures(lambda: list(open_pools(name)), since, ANSWER_S)):
        if time.monotonic() > deadline or name not in dict(open_runs()):
            break
        time.sleep(_LOOK_S)
    if name is not None and not found:
        raise PoolError(
            f"No pool or run {name} of this machine gave figures within {ANSWER_S:g} s: it has no pool open, or its "
            "program is stopped. `skyward ps` lists what exists."
        )
    if not found and not any(open_pools(name)):
        click.echo("skyward: no run of this machine has a pool open", err=True)
    return found


def _show_live(name: str | None, first: Sequence[PoolStats]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, highlight=False, emoji=False)
    try:
        with Live(_table(first, console.width), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(EVERY_S)
                pools = list(open_pools(name))
                watch(pools)
                live.update(_table([s for p in pools if (s := p.read()) is not None], console.width), refresh=True)
    except KeyboardInterrupt:
        return  # the usual way to end


def _table(pools: Sequence[PoolStats], width: int) -> Table:
    from rich.table import Table

    columns = _columns(pools, width)
    heading, *rows = _rows(pools, columns)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, title in enumerate(heading):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=True, overflow="crop")
    for row in rows:
        table.add_row(*row)
    if not rows:
        table.add_row("no pool is open", *[""] * (len(heading) - 1))
    return table


def _columns(pools: Sequence[PoolStats], width: int) -> list[Column]:
    gpus = any(node.gpus for pool in pools for node in pool.nodes)
    columns: list[Column] = [
        ("POOL", lambda pool, _: pool.pool, False),
        ("NODE", lambda _, node: str(node.node), False),
        ("RUN", lambda _, node: str(node.running), False),
        ("WAIT", lambda _, node: str(node.queued), True),
        ("DONE", lambda _, node: str(node.done), False),
        ("FAIL", lambda _, node: str(node.failed), True),
        ("CPU", lambda _, node: "-" if node.cores is None else f"{node.cores:.2f}", False),
        ("MEM", lambda _, node: size_text(node.memory), False),
        ("OF", lambda _, node: size_text(node.memory_limit), True),
        *([("GPU", lambda _, node: utilization(node.gpus), False)] if gpus else []),
        *([("GPUMEM", lambda _, node: size_text(sum(gpu.memory or 0 for gpu in node.gpus)), True)] if gpus else []),
        ("IN/s", lambda _, node: size_text(node.received_rate), False),
        ("OUT/s", lambda _, node: size_text(node.sent_rate), False),
    ]
    return [each for each in columns if width >= _WIDE or not each[2]]


def _rows(pools: Sequence[PoolStats], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    rows = [tuple(title for title, _, _ in columns)]
    return rows + [tuple(value(pool, node) for _, value, _ in columns) for pool in pools for node in pool.nodes]
