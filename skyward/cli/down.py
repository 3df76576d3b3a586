"""`skyward down`: end pools, whoever started them, found by labels alone."""

from __future__ import annotations

from collections.abc import Sequence

import click

from skyward.cli.places import Place, ask_all, place_options
from skyward.errors import ConfigError, ProviderError, SkywardError


@click.command()
@click.argument("pools", nargs=-1, metavar="[POOL]...")
@click.option("--all", "everything", is_flag=True, help="All pools.")
@place_options
def command(pools: tuple[str, ...], everything: bool, places: Sequence[Place]) -> int:
    """End pools by their identifiers, as `skyward ps` shows them.

    Ends them on this machine and on the machines named with --ssh. A pool whose client still runs loses its nodes.
    """
    if bool(pools) == everything:
        raise ConfigError("skyward down takes the identifiers of pools, or --all; `skyward ps` shows what there is.")
    failures, ended = [], dict.fromkeys(pools, 0)
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures.append(f"{place.name} cannot be asked: {answer}")
            continue
        there = [str(found["pool"]) for found in answer]
        for pool in sorted(set(there) if everything else set(there) & set(pools)):
            try:
                place.provider.release(pool)
            except SkywardError as error:
                failures.append(f"pool {pool} at {place.name} could not be ended: {error}")
                continue
            count = there.count(pool)
            ended[pool] = ended.get(pool, 0) + count
            click.echo(f"pool {pool}: {count} node{'s' * (count != 1)} ended at {place.name}")
    for pool in (pool for pool, count in ended.items() if not count):
        click.echo(f"pool {pool}: nothing of it was found", err=True)
    if failures:
        raise ProviderError("\n".join(["What was left may still run:", *failures]))
    return 0
