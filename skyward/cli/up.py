"""`skyward up`: a file with which others bring up nodes; so far a compose file."""

from __future__ import annotations

import click

from skyward.build.registry import parse_reference
from skyward.errors import ConfigError
from skyward.providers.compose_file import IMAGE, compose_file


@click.command()
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="How many nodes.")
@click.option("--compose", "as_compose", is_flag=True, help="Write a compose file to standard output.")
@click.option("--image", default=IMAGE, show_default=True, help="What nodes run that no pool brings up.")
def command(nodes: int, as_compose: bool, image: str) -> int:
    """Write a file that brings up nodes for pools: `skyward up --nodes 3 --compose > compose.yaml`.

    A pool with provider=sky.Compose("compose.yaml") brings it up and down by itself, or takes its nodes while it is up.
    """
    if not as_compose:
        raise ConfigError("skyward up writes a file and starts nothing: say --compose for a compose file.")
    parse_reference(image)
    click.echo(compose_file(nodes, image), nl=False)
    return 0
