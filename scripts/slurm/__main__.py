"""Command line of the Slurm cluster: `python3 scripts/slurm up|down`."""

import argparse
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything has checked the version
    sys.exit("slurm: Python 3.11 or newer is needed; this is " + sys.version.split()[0])

# Run as a folder, Python knows neither this package nor its parent.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from scripts.engine.console import SetupError  # noqa: E402
from scripts.slurm.commands import down, up  # noqa: E402
from scripts.slurm.place import here  # noqa: E402


def main() -> int:
    """Run one command; exit status 1 with a sentence on stderr when something cannot be had."""
    parser = argparse.ArgumentParser(prog="python3 scripts/slurm", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("up", help="bring up a login node and three compute nodes; write .slurm/cluster.json")
    verbs.add_parser("down", help="take them away with all their data")
    chosen = parser.parse_args()
    try:
        {"up": up, "down": down}[chosen.command](here())
    except (SetupError, OSError) as problem:
        print(f"slurm: {problem}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("slurm: interrupted; `make slurm-down` takes away what is there.", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
