"""Command line of the Kubernetes for tests: `python3 scripts/kube build|up|down`."""

import argparse
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything has checked the version
    sys.exit("kube: Python 3.11 or newer is needed; this is " + sys.version.split()[0])

# Run as a folder, Python knows neither this package nor its parent.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from scripts.engine.console import SetupError  # noqa: E402
from scripts.kube.commands import build, down, up  # noqa: E402
from scripts.kube.place import here  # noqa: E402


def main() -> int:
    """Run one command; exit status 1 with a sentence on stderr when something cannot be had."""
    parser = argparse.ArgumentParser(prog="python3 scripts/kube", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    verbs.add_parser("build", help="install the packages and build the program, which takes about 5 minutes once")
    verbs.add_parser("up", help="bring up two nodes; write .kube/kubeconfig")
    verbs.add_parser("down", help="take the cluster away with all its data; the program stays in the cache")
    chosen = parser.parse_args()
    try:
        {"build": build, "up": up, "down": down}[chosen.command](here())
    except (SetupError, OSError) as problem:
        print(f"kube: {problem}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("kube: interrupted; `make kube-down` takes away what is there.", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
