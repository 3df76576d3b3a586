"""The entry point of the `skyward` command. A build with nothing to do is answered before the compiler is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a SkywardError becomes a message on standard error."""
    if sys.platform == "win32":
        sys.stderr.write("skyward: it takes Linux or macOS; on Windows run it in the Subsystem for Linux, WSL 2.\n")
        return 2
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["build"]:
        from skyward.cli import unchanged

        if unchanged.answered(words):
            return 0
        unchanged.watch(words)
    from skyward.cli.commands import run

    return run(words)
