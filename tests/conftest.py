"""What every test sees: the engine that `make engine` left, and nothing of the caller's pools."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _source_engine() -> None:
    """Read `.engine/env` as `make test` does, so that a single test can be run by hand as well."""
    path = ROOT / ".engine" / "env"
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        os.environ.setdefault(name, "".join(shlex.split(value)))


_source_engine()
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a suite in the background of a shell: its clients take Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
