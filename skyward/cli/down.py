"""`skyward down`: end pools, whoever started them, found by labels alone.

With `--json` standard output has one object per line and nothing else:

- `{"event": "ended", "pool", "where", "nodes"}`: a pool that is ended at a place, and how many nodes it had there.
- `{"event": "absent", "pool"}`: a pool that was named and of which nothing was found.
- `{"event": "error", "pool", "where", "kind", "message"}`: what could not be ended, or a place that could not be asked,
  where `pool` is null; the exit status is then 6.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from skyward.cli.places import Place, ask_all, place_options
from skyward.errors import ConfigError, ProviderError, SkywardError


@click.command()
@click.argument("pools", nargs=-1, metavar="[POOL]...")
@click.option("--all", "everything", is_flag=True, help="All pools.")
@click.option("--json", "as_json", is_flag=True, help="Tell everything as JSON, one object per line.")
@place_options
def command(pools: tuple[str, ...], everything: bool, places: Sequence[Place], as_json: bool) -> int:
    """End pools by their identifiers, as `skyward ps` shows them.

    Ends them on this machine and at what is named with --ssh and --aws. A pool whose client still runs loses its nodes.
    """
    if bool(pools) == everything:
        raise ConfigError("skyward down takes the identifiers of pools, or --all; `skyward ps` shows what there is.")
    told, ended = _Told(as_json), set[str]()
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            told.failure(f"{place.name} cannot be asked", None, place, answer)
            continue
        there = [str(found["pool"]) for found in answer]
        for pool in sorted(set(there) if everything else set(there) & set(pools)):
            ended.add(pool)
            try:
                place.provider.release(pool)
            except SkywardError as error:
                told.failure(f"pool {pool} at {place.name} could not be ended", pool, place, error)
            else:
                told.end(pool, place, there.count(pool))
    for pool in pools:
        if pool not in ended:
            told.absence(pool)
    if told.failures:
        raise ProviderError("\n".join(["What was left may still run:", *told.failures]))
    return 0


class _Told:
    """What is told of the ends, and what went wrong."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.failures: list[str] = []

    def end(self, pool: str, place: Place, nodes: int) -> None:
        if self._as_json:
            _say("ended", pool=pool, where=place.name, nodes=nodes)
        else:
            click.echo(f"pool {pool}: {nodes} node{'s' * (nodes != 1)} ended at {place.name}")

    def absence(self, pool: str) -> None:
        if self._as_json:
            _say("absent", pool=pool)
        else:
            click.echo(f"pool {pool}: nothing of it was found", err=True)

    def failure(self, what: str, pool: str | None, place: Place, error: SkywardError) -> None:
        self.failures.append(f"{what}: {error}")
        if self._as_json:
            _say("error", pool=pool, where=place.name, kind=type(error).__name__, message=str(error))


def _say(event: str, **about: Any) -> None:
    click.echo(json.dumps({"event": event, **about}, ensure_ascii=False))
