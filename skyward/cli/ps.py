"""`skyward ps`: lists runs and the resources of all pools, found by labels, here and at the places in the options.

With `--json` standard output has one object per line and nothing else; each has `event` and `where`, the place's name:

- `node`: `pool`, `node` (-1 for resources that belong to no node), `name`, `state`, `owner` (the client's process),
  `user` (who started it, as "name@host"), and what else the provider knows: `image`, `host`, `type`; for rented
  resources `hourly` and `cost`, USD per hour and so far (null: unknown); for a pool with a name `pool_name`, and while
  it is kept `until`, in seconds since 1970; for a pool that a program on this machine has open `cores`, `memory` and
  `gpus` in use, as in `pool.stats()`.
- `run`: `run` (its name), `program`, `arguments`, `state` ("running", "ended", "killed", "unknown"), `status`,
  `started` and `ended` (seconds since 1970; null: not yet), `detached`, `user`, `pools`, and `calls`: how many are
  `running`, `queued`, `done` and `failed`; for rented pools `cost`, USD so far.
- `error`: a place that cannot be queried: `kind` (the exception's name), `message`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from skyward.builder.events import readable
from skyward.cli.figures import figures, utilization
from skyward.cli.output import Row, say_error, show_rows
from skyward.cli.places import Place, ask_all, place_options, ssh_hosts, with_names
from skyward.cli.runs import duration_text
from skyward.errors import SkywardError
from skyward.records.run import RunFacts
from skyward.runs.find import list_runs

_EVERY_S = 2.0
UNKNOWN = 6  # exit status if a place cannot be queried: that of provider errors
_Columns = Mapping[str, Callable[[Row], str]]


@click.command()
@click.option("--all", "ended", is_flag=True, help="Also runs that have ended.")
@click.option("--watch", is_flag=True, help="Look again every few seconds, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@place_options
def command(places: Sequence[Place], ended: bool, watch: bool, as_json: bool) -> int:
    """Show the nodes of all pools, and this user's runs.

    Nodes whoever started them, and what they use and cost. Looks at this machine's containers and processes, and at
    what the options name; nodes are found by their labels, runs by their records, here and on the machines that
    these point to. What nodes use is known of pools that programs of this user on this machine have open. Exit
    status 6 if a place does not answer.
    """
    if not watch:
        return _look(places, ended=ended, as_json=as_json)
    try:
        while True:
            if not as_json and sys.stdout.isatty():
                click.clear()
            _look(places, ended=ended, as_json=as_json)
            sys.stdout.flush()
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return 0  # the usual way to end


def _look(places: Sequence[Place], *, ended: bool, as_json: bool) -> int:
    """Print what there is now; return the exit status."""
    nodes, failures = list[dict[str, Any]](), list[tuple[str, str, SkywardError]]()
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures.append((place.name, f"{place.name} did not answer", answer))
        else:
            found = sorted(with_names(answer), key=lambda each: (each["pool"], each["node"]))
            nodes += [{"event": "node", "where": place.name, **each} for each in found]
    listed, unread = list_runs(ssh_hosts(places), ended=ended)
    unasked = {name for name, _, _ in failures}
    failures += [(name, f"runs on {name} cannot be read", unread[name]) for name in unread if name not in unasked]
    use = {(stats.pool, node.node): node for stats in figures({each["pool"] for each in nodes}) for node in stats.nodes}
    costs = dict[str, float]()  # USD so far for each rented pool
    for each in nodes:
        each["owner"] = str(each.get("owner") or each.get("pid") or "-")
        if (uses := use.get((each["pool"], each["node"]))) is not None:
            each |= {"cores": uses.cores, "memory": uses.memory, "gpus": [asdict(gpu) for gpu in uses.gpus]}
        if each.get("cost") is not None:
            costs[each["pool"]] = costs.get(each["pool"], 0.0) + each["cost"]
    for where, what, error in failures:
        if as_json:
            say_error(error, where=where)
        else:
            click.echo(f"skyward: {what}: {error}", err=True)
    show_rows(nodes, _node_columns(nodes), as_json=as_json)
    if not as_json and (priced := [each for each in nodes if each.get("hourly") is not None]):
        hourly, cost = (sum(each.get(name) or 0.0 for each in priced) for name in ("hourly", "cost"))
        click.echo(f"rented: {hourly:.3f} USD per hour, {cost:.3f} USD so far, at the prices of their launches")
    runs = [_run(facts, where, costs) for facts, where in listed]
    if runs:
        if not as_json:
            click.echo()
        show_rows(runs, _run_columns(runs, {facts.record.id: facts.state for facts, _ in listed}), as_json=as_json)
    return UNKNOWN if failures else 0


def _node_columns(nodes: Sequence[Row]) -> _Columns:
    columns: dict[str, Callable[[Row], str]] = {
        "POOL": lambda each: f"{each['pool']} ({each['pool_name']})" if "pool_name" in each else each["pool"],
        "NODE": lambda each: str(each["node"]),
        "WHERE": lambda each: str(each["where"]),
        "STATE": lambda each: str(each["state"]),
        "OWNER": lambda each: str(each["owner"]),
        "NAME": lambda each: str(each["name"]),
    }
    if any("cores" in each for each in nodes):
        columns["CPU"] = lambda each: "-" if each.get("cores") is None else f"{each['cores']:.2f}"
        columns["MEM"] = lambda each: readable(each["memory"]).replace(" ", "") if each.get("memory") else "-"
    if any(each.get("gpus") for each in nodes):
        columns["GPU"] = lambda each: utilization(each.get("gpus", ()))
    if any("hourly" in each for each in nodes):
        columns["USD/HOUR"] = lambda each: _price(each.get("hourly"))
        columns["USD"] = lambda each: _price(each.get("cost"))
    return columns


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _run(facts: RunFacts, where: str, costs: Mapping[str, float]) -> Row:
    record = facts.record
    known = [costs[pool] for pool in facts.pools if pool in costs]
    about = {
        "event": "run",
        "run": record.id,
        "where": where,
        "program": record.program,
        "arguments": list(record.arguments),
        "state": facts.phase,
        "status": facts.status,
        "started": record.started,
        "ended": facts.ended,
        "detached": record.detached,
        "user": record.user,
        "pools": list(facts.pools),
        "calls": dict(facts.calls),
    }
    return {**about, "cost": sum(known)} if known else about


def _run_columns(runs: Sequence[Row], states: Mapping[str, str]) -> _Columns:
    columns: dict[str, Callable[[Row], str]] = {
        "RUN": lambda each: str(each["run"]),
        "PROGRAM": _program,
        "WHERE": lambda each: str(each["where"]),
        "STATE": lambda each: states[each["run"]],
        "AGE": lambda each: duration_text(max(0.0, (each["ended"] or time.time()) - each["started"])),
        "CALLS": _calls,
    }
    if any("cost" in each for each in runs):
        columns["USD"] = lambda each: _price(each.get("cost"))
    return columns


def _program(run: Row) -> str:
    words = " ".join([run["program"].rpartition("/")[2], *run["arguments"]])
    return words if len(words) <= 40 else f"{words[:37]}..."


def _calls(run: Row) -> str:
    wanted = ("done", "failed") if run["state"] in ("ended", "killed") else ("done", "running", "failed")
    return ", ".join(f"{run['calls'][name]} {name}" for name in wanted if run["calls"].get(name)) or "-"
