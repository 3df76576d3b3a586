"""The reference of the command line, as Markdown, from what the commands declare of themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from skyward.cli.commands import cli

_FIRST = ("run", "ps", "logs", "down", "build")


def reference() -> str:
    """A section for each command, those below it after it."""
    return "\n".join(_sections(cli, click.Context(cli, info_name="skyward"), 2))


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{_usage(command, context)}\n```\n"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
    if not isinstance(command, click.Group):
        yield _options(command)
        return
    for name in sorted(command.list_commands(context), key=_place):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from _sections(below, click.Context(below, parent=context, info_name=name), level + 1)


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _usage(command: click.Command, context: click.Context) -> str:
    return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def _options(command: click.Command) -> str:
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        value = "" if option.is_flag or option.count else f" `{option.make_metavar(click.Context(command))}`"
        rows.append(f"| {names}{value.replace('|', ' or ')} | {_cell(option.help or '')} |")
    return "\n".join(["| Option | Meaning |", "|---|---|", *rows, ""]) if rows else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
