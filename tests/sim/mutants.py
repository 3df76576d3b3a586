"""Proof that the simulator finds mistakes: small ones are put into a copy of the pool, one at a time.

`python -m tests.sim.mutants` prints for each after how many seeds it was found. `--seeds` says after how many one
counts as missed, `--only N` runs the N-th alone, `--json` writes the table. A mutant whose text is not in the code any
more is an error: it has to be written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS = 240  # of one mutant


class Mutant(NamedTuple):
    """A change of one file of the package."""

    what: str
    file: str
    old: str
    new: str


def found(mutant: Mutant, seeds: int, first: int) -> dict[str, Any]:
    """After how many seeds the mutant is found, and by what."""
    source = (ROOT / "skyward" / mutant.file).read_text()
    if source.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.what}: its text is {source.count(mutant.old)} times in {mutant.file}")
    with tempfile.TemporaryDirectory(prefix="skyward-mutant-") as folder:
        for name in ("skyward", "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "e2e", "unit", "typing", "chaos")
            shutil.copytree(ROOT / name, Path(folder, name), ignore=ignored)
        Path(folder, "skyward", mutant.file).write_text(source.replace(mutant.old, mutant.new))
        began = time.perf_counter()
        command = [sys.executable, "-m", "tests.sim", "--first", first, "--count", seeds, "--seconds", SECONDS]
        environment = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    caught = done.returncode != 0
    how = re.search(r"^seed (\d+): (.*)", done.stdout, re.MULTILINE)
    ran = re.search(r"^(\d+) seeds", done.stdout, re.MULTILINE)
    count = int(how[1]) - first + 1 if how else int(ran[1]) if ran else 0
    by = how[2] if how else done.stderr.strip().rpartition("\n")[2]
    return {
        "mutant": mutant.what,
        "file": mutant.file,
        "caught": caught,
        "seeds": count,
        "by": by[:110] if caught else "",
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--check", action="store_true", help="only look for mutants whose text is not there")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    from tests.sim.mutations import MUTANTS, REVERTS

    rows = []
    if asked.check:
        for mutant in (*MUTANTS, *REVERTS):
            if (times := (ROOT / "skyward" / mutant.file).read_text().count(mutant.old)) != 1:
                print(f"{mutant.what}: its text is {times} times in {mutant.file}")
        return 0
    for number, mutant in enumerate((*MUTANTS, *REVERTS)):
        if number < asked.start or asked.only not in {None, number}:
            continue
        row = found(mutant, asked.seeds, asked.first)
        rows.append(row)
        failure_report = f"found after {row['seeds']}" if row["caught"] else f"NOT found in {row['seeds']}"
        print(f"{number:2} {mutant.file}: {mutant.what}: {failure_report} ({row['seconds']} s) {row['by']}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{sum(row['caught'] for row in rows)} of {len(rows)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
