"""Command line of the engine script: `python3 scripts/engine up|down`."""

import argparse
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything has checked the version
    sys.exit("engine: Python 3.11 or newer is needed; this is " + sys.version.split()[0])

# Run as a folder, Python knows neither this package nor its parent.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from scripts.engine import commands  # noqa: E402
from scripts.engine.console import SetupError, fail  # noqa: E402
from scripts.engine.place import here  # noqa: E402


def main() -> int:
    """Run one command; exit status 1 with a sentence on stderr when something cannot be had."""
    parser = argparse.ArgumentParser(prog="python3 scripts/engine", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("up", help="find or start an engine, a registry and the base image; write .engine/env")
    verbs.add_parser("down", help="stop what up started").add_argument(
        "--purge", action="store_true", help="also remove .engine with all its data"
    )
    chosen = parser.parse_args()
    try:
        if chosen.command == "up":
            commands.up(here())
        else:
            commands.down(here(), purge=chosen.purge)
    except SetupError as problem:
        return fail(problem)
    except OSError as error:
        return fail(SetupError(f"{error}."))
    except KeyboardInterrupt:
        return fail(SetupError("interrupted; run the same command again to go on."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
