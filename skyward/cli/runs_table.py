"""The runs in the output of `skyward ps`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import click

from skyward.cli.output import show_table
from skyward.cli.runs import duration_text
from skyward.errors import SkywardError
from skyward.runs.listing import ListedRun


def say_runs(runs: Sequence[ListedRun], lost: Mapping[str, SkywardError], costs: Mapping[str, float]) -> None:
    """Print a table of runs, and which machines could not be asked.

    Args:
        runs: what there is.
        lost: why machines could not be asked, by their names.
        costs: USD so far, of each rented pool.
    """
    for host, error in lost.items():
        click.echo(f"skyward: runs on {host} cannot be read: {error}", err=True)
    if not runs:
        return
    rented = any(pool in costs for run in runs for pool in run.pools)
    rows = [("RUN", "PROGRAM", "WHERE", "STATE", "AGE", "CALLS", *(("USD",) if rented else ()))]
    for run in runs:
        cost = _cost(run, costs)
        price = ("-" if cost is None else f"{cost:.3f}",) if rented else ()
        rows.append((run.record.id, _program(run), run.where, _state(run), _age(run), _calls(run), *price))
    click.echo()
    show_table(rows)


def say_runs_json(runs: Sequence[ListedRun], lost: Mapping[str, SkywardError], costs: Mapping[str, float]) -> None:
    """The same as objects of JSON."""
    for run in runs:
        record, state = run.record, run.state
        about = {
            "run": record.id,
            "where": run.where,
            "program": record.program,
            "arguments": list(record.arguments),
            "state": state.phase,
            "status": state.status,
            "started": record.started,
            "ended": state.ended,
            "detached": record.detached,
            "user": record.user,
            "pools": list(run.pools),
            "calls": dict(run.calls),
        }
        cost = _cost(run, costs)
        click.echo(json.dumps({"event": "run", **about, **({} if cost is None else {"cost": cost})}))
    for host, error in lost.items():
        click.echo(json.dumps({"event": "error", "where": host, "kind": type(error).__name__, "message": str(error)}))


def _program(run: ListedRun) -> str:
    words = " ".join([run.record.program.rpartition("/")[2], *run.record.arguments])
    return words if len(words) <= 40 else f"{words[:37]}..."


def _state(run: ListedRun) -> str:
    return "machine lost" if run.state.reason == "lost" else run.state.text


def _age(run: ListedRun) -> str:
    """How long it has run, or ran."""
    return duration_text(max(0.0, (run.state.ended or time.time()) - run.record.started))


def _calls(run: ListedRun) -> str:
    waiting = run.calls.get("running", 0) if not run.state.is_final else 0
    words = [f"{run.calls.get('done', 0)} done"] if run.calls else []
    words += [f"{waiting} running"] if waiting else []
    words += [f"{run.calls['failed']} failed"] if run.calls.get("failed") else []
    return ", ".join(words) or "-"


def _cost(run: ListedRun, costs: Mapping[str, float]) -> float | None:
    known = [costs[pool] for pool in run.pools if pool in costs]
    return sum(known) if known else None
