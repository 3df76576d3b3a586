"""The `skyward` command: its table of commands, and the one place where errors become messages and exit statuses.

| status | meaning |
|---|---|
| 0 | done (`build --check`: all images exist; `lock --check`: all locks fit) |
| 1 | `build --check`: an image does not exist; `lock --check`: a lock does not fit; else an error of no other kind |
| 2 | the command line, a file or a setting is wrong |
| 3 | a plugin failed (`build --check`: whether an image exists is unknown) |
| 4 | an image is not available: base, build or registry |
| 5 | the Docker engine, or the machine it runs on |
| 6, 7, 8 | machines, pools, calls |
| 9 | a connection between client and node |
| 130 | Ctrl-C |

`skyward run` exits with the status of the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

import click

from skyward._version import __version__
from skyward.cli.main import INTERRUPTED
from skyward.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    ImageError,
    JournalError,
    PluginError,
    PoolError,
    ProviderError,
    SkywardError,
    TaskError,
    WireError,
)

# name -> module of the command, imported on demand; "module:attribute" where a module has several commands
COMMANDS = {
    "attach": "skyward.cli.results:attach",
    "build": "skyward.cli.build",
    "compose": "skyward.cli.documents:compose",
    "cp": "skyward.cli.cp",
    "debug": "skyward.cli.exec:debug",
    "doctor": "skyward.cli.doctor",
    "down": "skyward.cli.down",
    "exec": "skyward.cli.exec",
    "forward": "skyward.cli.exec:forward",
    "image": "skyward.cli.image",
    "init": "skyward.cli.documents:init",
    "lock": "skyward.cli.lock",
    "logs": "skyward.cli.results:logs",
    "offers": "skyward.cli.offers",
    "ps": "skyward.cli.ps",
    "result": "skyward.cli.results:result",
    "run": "skyward.cli.run",
    "shell": "skyward.cli.exec:shell",
}
STATUSES: tuple[tuple[type[SkywardError], int], ...] = (
    (ConfigError, 2),
    (PluginError, 3),
    (ImageError, 4),
    (EngineError, 5),
    (ProviderError, 6),
    (PoolError, 7),
    (TaskError, 8),
    (WireError, 9),
    (JournalError, 10),
    (CheckpointError, 11),
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if close := get_close_matches(cmd_name, COMMANDS, n=3):
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {' or '.join(close)}?")
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show the traceback of an error, not its message alone.")
@click.version_option(__version__, prog_name="skyward", message="%(prog)s %(version)s")
def cli(debug: bool) -> None:
    """Run Python functions on machines that exist only while you need them."""


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit status; a SkywardError becomes a message on standard error."""
    try:
        return int(cli.main(list(words), prog_name="skyward", standalone_mode=False) or 0)
    except click.Abort:
        return _failed("Interrupted.", INTERRUPTED)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SkywardError as error:
        if "--debug" in words[:1]:
            import traceback

            traceback.print_exception(error)
        return _failed(str(error), status_of(error))
    except BrokenPipeError:
        # the reader has closed the pipe; without this, Python would report it again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def status_of(error: SkywardError) -> int:
    """Return the exit status for an error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 1)


def _failed(sentence: str, status: int) -> int:
    click.echo(f"skyward: {sentence}", err=True)
    return status
