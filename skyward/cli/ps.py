"""`skyward ps`: what of skyward's exists, found by labels: on this machine and on machines reached by SSH."""

from __future__ import annotations

from collections.abc import Sequence

import click

from skyward.cli.places import Place, ask_all, place_options
from skyward.errors import SkywardError

UNKNOWN = 6  # exit status where a place cannot be asked: the one of providers


@click.command()
@place_options
def command(places: Sequence[Place]) -> int:
    """Show the nodes of all pools, whoever started them.

    Looks at this machine's containers and processes, and at the machines named with --ssh. Nothing is recorded
    anywhere: what is shown is what exists, found by its labels. Exit status 6 if a place cannot be asked.
    """
    rows, failures = [("POOL", "NODE", "WHERE", "STATE", "OWNER", "NAME")], 0
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures += 1
            click.echo(f"skyward: {place.name} cannot be asked: {answer}", err=True)
            continue
        rows += [
            (
                str(found["pool"]),
                str(found["node"]),
                place.name,
                str(found["state"]),
                str(found.get("owner") or found.get("pid") or "-"),
                str(found["name"]),
            )
            for found in sorted(answer, key=lambda found: (found["pool"], found["node"]))
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return UNKNOWN if failures else 0
