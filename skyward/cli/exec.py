"""`skyward exec`: one command in a node, on this process' standard streams; `skyward shell`: a shell there."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from skyward.cli.node_target import find_node
from skyward.cli.places import Place, place_options
from skyward.cli.terminal import run_in_node
from skyward.errors import ConfigError


class _AfterDashes(click.Command):
    """A command that gets all that stands after the first `--` as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, words = (args, []) if "--" not in args else (args[: args.index("--")], args[args.index("--") + 1 :])
        ctx.meta["words"] = words
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [WORD]..."]


@click.command(cls=_AfterDashes)
@click.argument("pool")
@click.argument("node", required=False)
@click.option("-t", "--tty", "in_terminal", is_flag=True, help="Give the command a terminal.")
@place_options
@click.pass_context
def command(context: click.Context, pool: str, node: str | None, in_terminal: bool, places: Sequence[Place]) -> int:
    """Run a command in a node of a pool.

    Such as `skyward exec POOL 1 -- nvidia-smi`; there is no shell between. It has the environment and the working
    directory of calls, and this command's standard input, output and error, each by itself. Signals reach it. Its
    exit status is this command's, 128 and the number if a signal has ended it, 127 and 126 if it was not found or
    cannot be run. What it has started ends with it.
    """
    words: list[str] = context.meta["words"]
    if not words:
        raise ConfigError("skyward exec takes a command after two dashes: `skyward exec POOL NODE -- nvidia-smi`.")
    with find_node(places, pool, node).enter() as access:
        return run_in_node(access, words, in_terminal=in_terminal)


@click.command()
@click.argument("pool")
@click.argument("node", required=False)
@place_options
def shell(pool: str, node: str | None, places: Sequence[Place]) -> int:
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
