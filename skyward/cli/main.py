"""The entry of the `skyward` command. A build that has nothing to do is told here, before any of it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a SkywardError becomes a message on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["build"] and not any(word.startswith("-") for word in words):
        from skyward.cli import unchanged

        if unchanged.told_again(words):
            return 0
        unchanged.watch()
    from skyward.cli.commands import run

    return run(words)
