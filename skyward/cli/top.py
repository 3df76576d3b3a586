"""`skyward top`: what the open pools of this machine's runs use and do now.

With `--json` standard output has one object per line and nothing else: `event` "pool", `run`, and what `pool.stats()`
tells, as `skyward.model.stats` has it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from skyward._pool.stats import EVERY_S
from skyward.cli.figures import OpenPool, figures, open_pools, open_runs, size_text, utilization, watch
from skyward.cli.output import show_table
from skyward.errors import PoolError
from skyward.model.stats import NodeStats, PoolStats

if TYPE_CHECKING:
    from rich.table import Table

ANSWER_S = 5.0  # how long the first figures are waited for
_LOOK_S = 0.1
_WIDE = 70  # columns, from which on all figures are shown


Column = tuple[str, Callable[[PoolStats, NodeStats], str], bool]  # heading, value, whether for wide terminals only


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
    """The pools that have given figures since a moment; a run that has just been started is given time to open one.

    Raises:
        PoolError: the one that was asked for does not.
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
        return  # the usual end


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
