"""`skyward ps`: what of skyward's exists, found by labels: on this machine and on machines reached by SSH or rented.

With `--json` standard output has one object per line and nothing else; each has `event` and `where`, the place's name:

- `node`: `pool`, `node` (-1 for what belongs to no node), `name`, `state`, `owner` (the client's process), `user` (who
  started it, as "name@host"), and what else the provider knows: `image`, `host`, `type`; of what is rented `hourly` and
  `cost`, USD per hour and so far (null: not known).
- `error`: a place that cannot be asked: `kind` (the exception's name), `message`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from skyward.cli.places import Place, ask_all, place_options
from skyward.cli.table import show_table
from skyward.errors import SkywardError

UNKNOWN = 6  # exit status where a place cannot be asked: the one of providers


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Tell everything as JSON, one object per line.")
@place_options
def command(places: Sequence[Place], as_json: bool) -> int:
    """Show the nodes of all pools, whoever started them, and what those that are rented cost.

    Looks at this machine's containers and processes, and at what is named with --ssh and --aws. Nothing is recorded
    anywhere: what is shown is what exists, found by its labels. Exit status 6 if a place cannot be asked.
    """
    found: list[tuple[Place, Mapping[str, Any]]] = []
    failures: list[tuple[Place, SkywardError]] = []
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures.append((place, answer))
        else:
            found += [(place, each) for each in sorted(answer, key=lambda each: (each["pool"], each["node"]))]
    (_say_json if as_json else _say)(found, failures)
    return UNKNOWN if failures else 0


def _say_json(found: Sequence[tuple[Place, Mapping[str, Any]]], failures: Sequence[tuple[Place, SkywardError]]) -> None:
    for place, each in found:
        click.echo(json.dumps({"event": "node", "where": place.name, **each, "owner": _owner(each)}))
    for place, error in failures:
        told = {"kind": type(error).__name__, "message": str(error)}
        click.echo(json.dumps({"event": "error", "where": place.name, **told}))


def _say(found: Sequence[tuple[Place, Mapping[str, Any]]], failures: Sequence[tuple[Place, SkywardError]]) -> None:
    for place, error in failures:
        click.echo(f"skyward: {place.name} cannot be asked: {error}", err=True)
    rented = any("hourly" in each for _, each in found)
    rows = [("POOL", "NODE", "WHERE", "STATE", "OWNER", "NAME", *(("USD/HOUR", "USD") if rented else ()))]
    rows += [
        (
            *(str(each["pool"]), str(each["node"]), place.name, str(each["state"]), _owner(each), str(each["name"])),
            *((_price(each, "hourly"), _price(each, "cost")) if rented else ()),
        )
        for place, each in found
    ]
    show_table(rows)
    priced = [each for _, each in found if each.get("hourly") is not None]
    if priced:
        hourly, cost = (sum(each[name] for each in priced) for name in ("hourly", "cost"))
        click.echo(f"rented: {hourly:.3f} USD per hour, {cost:.3f} USD so far, at the prices of their launches")


def _owner(each: Mapping[str, Any]) -> str:
    return str(each.get("owner") or each.get("pid") or "-")


def _price(each: Mapping[str, Any], name: str) -> str:
    value = each.get(name)
    return "-" if value is None else f"{value:.3f}"
