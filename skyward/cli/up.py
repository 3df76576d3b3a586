"""`skyward up`: a file with which others bring up nodes; so far a compose file."""

from __future__ import annotations

from pathlib import Path

import click

from skyward.builder.registry.reference import parse_reference
from skyward.errors import ConfigError
from skyward.model.rights import DEFAULT, Rights
from skyward.providers.compose.file import DOCKERFILE, IMAGE, compose_file


@click.command()
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="How many nodes.")
@click.option("--compose", "as_compose", is_flag=True, help="Write a compose file to standard output.")
@click.option("--image", default=IMAGE, show_default=True, help="What nodes run that no pool brings up.")
@click.option("--gpus", type=click.IntRange(min=1), default=None, help="NVIDIA GPUs that each node has for itself.")
@click.option("--user", help="Whom functions run as, in place of the image's own user: 'app', '1000:100'.")
@click.option("--privileges", help="Capabilities that they can have, as 'SYS_PTRACE,NET_ADMIN', or 'default'.")
@click.option("--build", metavar="FOLDER", help="Have compose build that image from this clone of skyward.")
def command(
    nodes: int,
    as_compose: bool,
    image: str,
    gpus: int | None,
    user: str | None,
    privileges: str | None,
    build: str | None,
) -> int:
    """Write a compose file that brings up nodes for pools.

    `skyward up --nodes 3 --compose > compose.yaml` writes it. A pool with provider=sky.Compose("compose.yaml")
    brings it up and down by itself, or takes its nodes while it is up.
    """
    if not as_compose:
        raise ConfigError("skyward up writes a file and starts nothing: say --compose for a compose file.")
    parse_reference(image)
    if build is not None and not (Path(build) / DOCKERFILE).is_file():
        raise ConfigError(f"--build names a clone of skyward; {build} has no {DOCKERFILE}.")
    wanted = privileges if privileges == DEFAULT else [each for each in (privileges or "").split(",") if each]
    rights = Rights.of("skyward up", user, wanted)
    click.echo(compose_file(nodes, image, gpus or 0, build, rights), nl=False)
    return 0
