"""`skyward completion`: what makes a shell complete commands and options of `skyward`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from skyward.errors import ConfigError

_VARIABLE = "_SKYWARD_COMPLETE"  # which the shell sets when it asks; click's name for a program called skyward
_USE = {
    "bash": 'eval "$(skyward completion bash)"                                       # in ~/.bashrc',
    "zsh": 'eval "$(skyward completion zsh)"                                         # in ~/.zshrc, after compinit',
    "fish": "skyward completion fish > ~/.config/fish/completions/skyward.fish       # once",
}


@click.command(epilog="\b\n" + "\n".join(_USE.values()))
@click.argument("shell", type=click.Choice(list(_USE)))
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Print the lines that make bash, zsh or fish complete commands and options of skyward."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(f"click, which makes the lines, knows no {shell}; update it.")
    click.echo(kind(context.find_root().command, {}, "skyward", _VARIABLE).source())
    return 0
