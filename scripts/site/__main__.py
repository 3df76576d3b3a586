"""Build the site with warnings as errors, and check the links between its pages as they were rendered."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from scripts.site.links import problems
from scripts.site.pages import ROOT


def main() -> int:
    """Exit status 1 where mkdocs warns or a link is dead; each is named."""
    parser = argparse.ArgumentParser(prog="python -m scripts.site", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "site", metavar="DIR", help="where the site is written")
    into = parser.parse_args().into.resolve()
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--clean", "--site-dir", str(into)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the theme's notice of its successor
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if built.returncode != 0:
        return 1
    found = problems(into)
    for problem in found:
        print(f"docs: {problem}", file=sys.stderr)
    if not found:
        print(f"docs: {into}/index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
