"""What commands that build or lock images are given: image files, projects, and programs with their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skyward.errors import ConfigError

if TYPE_CHECKING:
    from skyward.builder.sources.declared import Declared
    from skyward.cli.output import Output

_PROGRAMS = (".py", ".ipynb")


class ProgramCommand(click.Command):
    """A command whose words after `--` are the arguments of a program; without `--` its `arguments` is None."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the words at `--`."""
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["arguments"] = tuple(args[at + 1 :]) if at < len(args) else None
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the arguments in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENTS...]"]


def split(source: str) -> tuple[str, str]:
    """Return the path of a source, and the name after it in `train.py:IMAGE`; "" if there is none."""
    path, _, name = source.rpartition(":")
    return (path, name) if path.endswith(_PROGRAMS) and name.isidentifier() else (source, "")


def declared_in(
    source: str, arguments: Sequence[str] | None, output: Output, choice: Mapping[str, Any] | None = None
) -> list[Declared]:
    """Return the images of a TOML file, a project's directory, or a program; report pools that need none.

    Args:
        source: its path; for a program perhaps with a name, as in `train.py:IMAGE`.
        arguments: run the program with these; None to import it first.
        output: for notes.
        choice: of a project: groups, extras and package.

    Raises:
        ConfigError: it declares none, or an invalid one.
    """
    path, name = split(source)
    if not path.endswith(_PROGRAMS):
        from skyward.builder.sources.declared import load, load_project

        if arguments is not None:
            raise ConfigError(f"Arguments after -- are for a program, which {source} is not.")
        return [load_project(source, **choice or {}) if Path(source).is_dir() else load(source)]
    from skyward._pool.description import DeclaredPool
    from skyward.runs.describe import declared_by

    found = declared_by(path, arguments, name)
    local = [each for each in found if isinstance(each, DeclaredPool) and {*each.kinds} == {"Local"}]
    for each in local:
        output.note(f"{path}:{each.name}", f"{each.where}: the nodes of sky.Local are processes; there is no image.")
    if not name and not any(isinstance(each, DeclaredPool) for each in found):
        text = f"{path} is not run, so what the plugins of its pools add is not known. To run it, write `{path} --`."
        output.note(path, text)
    return [each for each in found if each not in local]
