"""From the start of a process to its first result: in a pool that is kept, in one of its own, and `python -c pass`.

python benchmarks/warm.py                              # containers and processes of this machine
python benchmarks/warm.py --ssh user@host --key ~/.ssh/id_ed25519 --known-hosts ~/.ssh/known_hosts

Fifty programs in a row open the kept pool, one after the other; the others run between them, so that all meet the same
load. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = """
import sys, time
import skyward as sky

@sky.compute
def work():
    import os
    return os.getpid()

pool = sky.ComputePool({provider}, display="quiet", {more})
began = time.perf_counter()
with pool:
    worker = work() >> pool
    first = time.perf_counter() - began
    print(worker, first, *(f"{{name}}={{seconds:.4f}}" for name, seconds in pool.stages.items()), flush=True)
"""
NAME = f"benchmark-{os.getpid()}"


def first_result(words: Sequence[str]) -> tuple[float, str]:
    """Seconds from the start of a program to its first line, and that line; waits until it has ended."""
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        if process.wait():
            sys.exit(f"{words} failed.")
    return seconds, line


def program(provider: str, more: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(provider=provider, more=more)]


def figures(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median_ms": round(1e3 * statistics.median(ordered), 1),
        "best_ms": round(1e3 * ordered[0], 1),
        "p90_ms": round(1e3 * ordered[int(0.9 * (len(ordered) - 1))], 1),
        "runs": len(ordered),
    }


def measure(provider: str, repeats: int) -> dict[str, Any]:
    """Programs with a kept pool, with a pool of their own, and without any, in turns."""
    kept = program(provider, f'name={NAME!r}, keep="10m"')
    own, bare = program(provider, ""), [sys.executable, "-c", "print()"]
    times: dict[str, list[float]] = {"kept": [], "kept, with to first result": [], "own": [], "python -c pass": []}
    first_result(kept)  # builds the image if need be, and starts the pool
    workers = set()
    for number in range(repeats):
        seconds, line = first_result(kept)
        worker, inside, *_ = line.split()
        workers.add(worker)
        times["kept"].append(seconds)
        times["kept, with to first result"].append(float(inside))
        times["python -c pass"].append(first_result(bare)[0])
        if number % 5 == 0:
            times["own"].append(first_result(own)[0])
    first_result(program(provider, f"name={NAME!r}"))  # ends it
    return {**{name: figures(values) for name, values in times.items()}, "workers": len(workers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--ssh", help="also a pool on this host, as sky.SSH() names it")
    parser.add_argument("--key", type=Path)
    parser.add_argument("--known-hosts", type=Path)
    options = parser.parse_args()
    providers = {"docker": "sky.Docker()", "local": "sky.Local()"}
    if options.ssh:
        files = ", ".join(f"{name}={str(getattr(options, name))!r}" for name in ("key", "known_hosts"))
        providers["ssh"] = f"sky.SSH({options.ssh!r}, {files})"
    found: dict[str, Any] = {name: measure(provider, options.repeats) for name, provider in providers.items()}
    json.dump({"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), **found}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
