"""Entry point of the `skyward` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130  # the exit status after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a SkywardError becomes a message on standard error."""
    if sys.platform == "win32":
        sys.stderr.write("skyward runs on Linux and macOS; on Windows use the Subsystem for Linux, WSL 2.\n")
        return 2
    try:
        from skyward.cli.commands import run

        return run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # while modules are imported, before click handles it
        sys.stderr.write("\nskyward: Interrupted.\n")
        return INTERRUPTED
