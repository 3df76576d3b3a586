"""`skyward run`: runs a program as `python` would and saves its output; `--detach` runs it in the background.

With `--detach --json` standard output is one object: `event` "run", and the fields of the run's record: `id`, `place`,
`program`, `arguments`, `started` and so on, see `skyward.records.run`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from skyward.errors import ConfigError
from skyward.records.run import prune_at_times
from skyward.runs.driver import new_run, run_here


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as for python -m.")
@click.option("-d", "--detach", "is_detached", is_flag=True, help="Let it go on alone, beside its pools, and return.")
@click.option("--name", metavar="RUN", help="Name of the run. [default: the program's and four characters]")
@click.option(
    "--env", "variables", metavar="NAME", multiple=True, help="With --detach: a variable that the program needs there."
)
@click.option(
    "--on",
    "place",
    metavar="PLACE",
    help="With --detach: where it runs: local or user@host. [default: where its first pool is]",
)
@click.option(
    "--keep",
    metavar="TIME",
    help="With --detach: how long a rented machine waits for its results to be fetched. [default: 1h]",
)
@click.option("--json", "as_json", is_flag=True, help="With --detach: print the run as a JSON object.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def command(
    program: str,
    arguments: tuple[str, ...],
    is_module: bool,
    is_detached: bool,
    name: str | None,
    variables: tuple[str, ...],
    place: str | None,
    keep: str | None,
    as_json: bool,
) -> int:
    """Run a program as Python does, and keep what it prints.

    As `python PROGRAM ARGUMENTS` does. Everything after PROGRAM is the program's own. Exit status is the program's.
    With --detach the program runs where its first pool is: in a process of its own for sky.Local and sky.Docker, in a
    container of the first machine for sky.SSH and sky.AWS. To find that, it is run here until it opens that pool,
    which is not created. It goes on after this terminal is closed, and where its pools are elsewhere, after
    this machine is switched off; `skyward attach RUN` shows what it prints, `skyward down RUN` ends it.
    """
    prune_at_times()
    run = new_run(program, arguments, is_module=is_module, name=name)
    if not is_detached:
        if as_json or variables or place is not None or keep is not None:
            raise ConfigError("--env, --on, --keep and --json belong to --detach; in the foreground they mean nothing.")
        if "--detach" in arguments:
            _say("--detach after PROGRAM is the program's own; `skyward run --detach PROGRAM` detaches")
        if sys.stderr.isatty():
            click.echo(f"skyward: run {run.id}", err=True)
        return run_here(run)
    from skyward.builder.events import as_lines
    from skyward.cli.runs import seconds_of
    from skyward.runs.detach import detach

    record = detach(run, variables, None if keep is None else seconds_of(keep), as_lines(_say), place)
    if as_json:
        click.echo(json.dumps({"event": "run", **asdict(record)}))
        return 0
    click.echo(record.id)
    where = f"on {record.place}" if record.is_pointer else "in a process of its own"
    _say(f"it runs {where}; `skyward attach {record.id}` shows what it prints")
    return 0


def _say(line: str) -> None:
    click.echo(f"skyward: {line}", err=True)
