"""Command line of the stand: `python3 scripts/stand up|down|fault`."""

import argparse
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything has checked the version
    sys.exit("stand: Python 3.11 or newer is needed; this is " + sys.version.split()[0])

# Run as a folder, Python knows neither this package nor its parent.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from scripts.engine.console import SetupError  # noqa: E402
from scripts.stand.commands import down, up  # noqa: E402
from scripts.stand.faults import KINDS  # noqa: E402
from scripts.stand.place import here  # noqa: E402


def main() -> int:
    """Run one command; exit status 1 with a sentence on stderr when something cannot be had."""
    parser = argparse.ArgumentParser(prog="python3 scripts/stand", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("up", help="bring up three hosts; write .stand/hosts.json")
    verbs.add_parser("down", help="take them away with all their data")
    fault = verbs.add_parser("fault", help="break something on a host, or mend it")
    fault.add_argument("kind", choices=sorted(KINDS))
    fault.add_argument("host", type=int, choices=(1, 2, 3), help="number of the host")
    fault.add_argument("arguments", nargs="*", help="of that fault: another host's number, Mbit/s, MB to leave free")
    chosen = parser.parse_args()
    try:
        if chosen.command == "fault":
            KINDS[chosen.kind](here().host(chosen.host), *map(int, chosen.arguments))
        else:
            {"up": up, "down": down}[chosen.command](here())
    except (SetupError, OSError) as problem:
        print(f"stand: {problem}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("stand: interrupted; `make stand-down` takes away what is there.", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
