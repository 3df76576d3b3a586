"""`skyward shell`: an interactive shell in a node."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from skyward.cli.node_target import find_node
from skyward.cli.places import Place, place_options
from skyward.cli.terminal import run_in_node
from skyward.errors import ConfigError


@click.command()
@click.argument("pool")
@click.argument("node", required=False)
@place_options
def command(pool: str, node: str | None, places: Sequence[Place]) -> int:
    """Open a shell in NODE of POOL: bash if it has it, else sh.

    POOL is an identifier as `skyward ps` shows it, the begin of one, or a name. NODE is a number; without it the shell
    is in node 0. It has the environment and the working directory of calls. What it has started ends with it. The exit
    status is the shell's.
    """
    if not os.isatty(0):
        raise ConfigError("skyward shell needs a terminal as its standard input. Run `skyward exec POOL NODE -- sh`.")
    target = find_node(places, pool, node)
    with target.enter() as access:
        click.echo(f"skyward: a shell in {target.title}; exit or Ctrl-D ends it", err=True)
        return run_in_node(access, (), in_terminal=True)
