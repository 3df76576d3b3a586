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

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from skyward.cli.figures import figures, open_pools, size_text, utilization
from skyward.cli.output import say_error, show_table
from skyward.cli.places import Place, ask_all, place_options, ssh_hosts, with_names
from skyward.cli.runs import duration_text
from skyward.errors import SkywardError
from skyward.model.resource import NodeStats, Resource
from skyward.records.run import RunFacts
from skyward.runs.find import list_runs

_PATIENCE_S = 3.0  # how long to wait for the figures of nodes
_Use = Mapping[tuple[str, int], NodeStats]  # by pool and node
_EVERY_S = 2.0
UNKNOWN = 6  # exit status if a place cannot be queried: that of provider errors


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
    found: list[tuple[Place, Resource]] = []
    failures: list[tuple[Place, SkywardError]] = []
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures.append((place, answer))
        else:
            answer = with_names(answer)
            found += [(place, each) for each in sorted(answer, key=lambda each: (each["pool"], each["node"]))]
    runs, unread = list_runs(ssh_hosts(places), ended=ended)
    unasked = {place.name for place, _ in failures}
    lost = {name: error for name, error in unread.items() if name not in unasked}
    (_say_json if as_json else _say)(found, failures, _use_of({str(each["pool"]) for _, each in found}))
    (_say_runs_json if as_json else _say_runs)(runs, lost, _costs(found))
    return UNKNOWN if failures or lost else 0


def _use_of(pools: set[str]) -> _Use:
    """Return the usage of the nodes of those of these pools that programs on this machine have open."""
    answers = figures(lambda: [each for each in open_pools() if each.pool in pools], time.time(), _PATIENCE_S)
    return {(stats.pool, node.node): node for stats in answers for node in stats.nodes}


def _costs(found: Sequence[tuple[Place, Resource]]) -> dict[str, float]:
    """Return the cost of the nodes of each rented pool so far, where it is known."""
    costs: dict[str, float] = {}
    for _, each in found:
        if each.get("cost") is not None:
            costs[str(each["pool"])] = costs.get(str(each["pool"]), 0.0) + float(each["cost"] or 0.0)
    return costs


def _say_json(
    found: Sequence[tuple[Place, Resource]], failures: Sequence[tuple[Place, SkywardError]], use: _Use
) -> None:
    for place, each in found:
        uses = use.get((str(each["pool"]), each["node"]))
        of_it = {name: asdict(uses)[name] for name in ("cores", "memory", "gpus")} if uses is not None else {}
        click.echo(json.dumps({"event": "node", "where": place.name, **each, "owner": _owner(each), **of_it}))
    for place, error in failures:
        say_error(error, where=place.name)


def _say(found: Sequence[tuple[Place, Resource]], failures: Sequence[tuple[Place, SkywardError]], use: _Use) -> None:
    for place, error in failures:
        click.echo(f"skyward: {place.name} did not answer: {error}", err=True)
    rented = any("hourly" in each for _, each in found)
    uses = ("CPU", "MEM", *(("GPU",) if any(each.gpus for each in use.values()) else ())) if use else ()
    heading = ("POOL", "NODE", "WHERE", "STATE", "OWNER", "NAME", *uses, *(("USD/HOUR", "USD") if rented else ()))
    rows = [heading]
    rows += [
        (
            *(_pool(each), str(each["node"]), place.name, str(each["state"]), _owner(each), str(each["name"])),
            *_used(use.get((str(each["pool"]), each["node"])))[: len(uses)],
            *((_price(each.get("hourly")), _price(each.get("cost"))) if rented else ()),
        )
        for place, each in found
    ]
    show_table(rows)
    priced = [each for _, each in found if each.get("hourly") is not None]
    if priced:
        hourly = sum(each.get("hourly") or 0.0 for each in priced)
        cost = sum(each.get("cost") or 0.0 for each in priced)
        click.echo(f"rented: {hourly:.3f} USD per hour, {cost:.3f} USD so far, at the prices of their launches")


def _used(uses: NodeStats | None) -> tuple[str, str, str]:
    if uses is None:
        return "-", "-", "-"
    return "-" if uses.cores is None else f"{uses.cores:.2f}", size_text(uses.memory), utilization(uses.gpus)


def _pool(each: Resource) -> str:
    return f"{each['pool']} ({each['pool_name']})" if "pool_name" in each else str(each["pool"])


def _owner(each: Resource) -> str:
    return str(each.get("owner") or each.get("pid") or "-")


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _say_runs(
    runs: Sequence[tuple[RunFacts, str]], lost: Mapping[str, SkywardError], costs: Mapping[str, float]
) -> None:
    """Print a table of runs, and the machines that could not be queried; `costs` is USD so far for each rented pool."""
    for host, error in lost.items():
        click.echo(f"skyward: runs on {host} cannot be read: {error}", err=True)
    if not runs:
        return
    rented = any(pool in costs for facts, _ in runs for pool in facts.pools)
    rows = [("RUN", "PROGRAM", "WHERE", "STATE", "AGE", "CALLS", *(("USD",) if rented else ()))]
    for facts, where in runs:
        price = (_price(_cost(facts, costs)),) if rented else ()
        rows.append((facts.record.id, _program(facts), where, facts.state, _age(facts), _calls(facts), *price))
    click.echo()
    show_table(rows)


def _say_runs_json(
    runs: Sequence[tuple[RunFacts, str]], lost: Mapping[str, SkywardError], costs: Mapping[str, float]
) -> None:
    """Print the same as JSON objects."""
    for facts, where in runs:
        record = facts.record
        about = {
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
        cost = _cost(facts, costs)
        click.echo(json.dumps({"event": "run", **about, **({} if cost is None else {"cost": cost})}))
    for host, error in lost.items():
        say_error(error, where=host)


def _program(facts: RunFacts) -> str:
    words = " ".join([facts.record.program.rpartition("/")[2], *facts.record.arguments])
    return words if len(words) <= 40 else f"{words[:37]}..."


def _age(facts: RunFacts) -> str:
    """Return how long it has been running, or ran."""
    return duration_text(max(0.0, (facts.ended or time.time()) - facts.record.started))


def _calls(facts: RunFacts) -> str:
    wanted = ("done", "failed") if facts.is_final else ("done", "running", "failed")
    return ", ".join(f"{facts.calls[name]} {name}" for name in wanted if facts.calls.get(name)) or "-"


def _cost(facts: RunFacts, costs: Mapping[str, float]) -> float | None:
    known = [costs[pool] for pool in facts.pools if pool in costs]
    return sum(known) if known else None
