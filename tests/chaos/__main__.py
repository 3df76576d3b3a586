"""`make chaos`: all of it, some five minutes on two cores. Writes `benchmarks/results/chaos.json`.

SEED=n repeats the calls and faults of a run; what the machine does between them is not repeated. The soak and the
fuzzing run in processes of their own beside the rest, which mostly waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.stand import commands
from scripts.stand.place import Stand, here
from tests.chaos import collective, fuzz, places, soak, workload
from tests.chaos.history import shown
from tests.chaos.workload import Result

CALLS, ROUNDS, FRAMES, HANDSHAKES = 10_000, 20, 200_000, 1_000_000
FIGURES = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
BESIDE = "beside"  # the argument of the process that runs beside the rest


def beside(seed: str) -> dict[str, Result]:
    """What needs no faults."""
    return {"frames": fuzz.run(seed, FRAMES, HANDSHAKES), "soak": soak.run(1.0)}


def under_faults(seed: str) -> Iterator[tuple[str, Callable[[], Result]]]:
    """The workloads, in order."""
    stop = [places.long_stop]
    yield "processes", lambda: workload.run(places.local(), CALLS, seed)
    yield "containers", lambda: workload.run(places.containers(), CALLS, seed, extra=stop)
    with standing() as stand:
        if stand is not None:
            yield "hosts", lambda: workload.run(places.three_hosts(stand), CALLS, seed)
    yield "collective", lambda: collective.run(ROUNDS, seed)


@contextlib.contextmanager
def standing() -> Iterator[Stand | None]:
    """The stand, brought up for this and taken away after it; None where it cannot be."""
    if os.geteuid() != 0 or sys.platform != "linux":
        print("chaos: the three hosts are left out: the stand takes root on Linux")
        yield None
        return
    stand = here()
    was_up = stand.hosts_file.exists()
    commands.up(stand)
    try:
        yield stand
    finally:
        if not was_up:
            commands.down(stand)


def main() -> int:
    """Run everything; 1 if a rule was broken."""
    seed = os.environ.get("SEED") or str(int.from_bytes(os.urandom(3), "big"))
    print(f"chaos: SEED={seed}", flush=True)
    began = time.monotonic()
    found: dict[str, Result] = {}
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "tests.chaos", BESIDE, seed]
        with subprocess.Popen(command, stdout=said, text=True) as other:
            for name, run in under_faults(seed):
                found[name] = report(name, run())
            other.wait()
        said.seek(0)
        lines = said.read().splitlines()
    if other.returncode:
        found["beside"] = report("beside", Result({}, [f"Soak and fuzzing ended with status {other.returncode}."]))
    else:
        for name, result in json.loads(lines[-1]).items():
            found[name] = report(name, Result(*result))
    broken = sum(len(result.broken) for result in found.values())
    facts = {
        "seed": seed,
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}",
        "seconds": round(time.monotonic() - began),
        "violations": broken,
        **{name: result.figures for name, result in found.items()},
    }
    FIGURES.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"chaos: SEED={seed}, {broken} violations, {facts['seconds']} s; figures in {FIGURES}")
    return int(broken > 0)


def report(name: str, result: Result) -> Result:
    """Say how a part went."""
    print(f"chaos: {name}: {len(result.broken)} violations; {json.dumps(result.figures)}", flush=True)
    if result.broken:
        print(shown(result.broken), flush=True)
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == [BESIDE]:
        print(json.dumps(beside(sys.argv[2])))
    else:
        sys.exit(main())
