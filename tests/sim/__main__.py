"""`python -m tests.sim`: run seeds one after the other, for so long or so many, or tell one."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time

from tests.sim.known import KNOWN

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone, told step by step if it fails")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--go-on", action="store_true", help="do not end at the first failure")
    parser.add_argument("--trace", action="store_true", help="print all events of --seed")
    parser.add_argument("--hashes", action="store_true", help="print the hash of each seed's switches")
    parser.add_argument("--ignore", default=KNOWN, help="a pattern: violations whose text matches it are none")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.setswitchinterval(100.0)
    from tests.sim.scenario import simulate

    began = time.perf_counter()
    steps = switches = failed = done = 0
    last = asked.first + asked.count
    seed = asked.first if asked.seed is None else asked.seed
    while seed < last and (time.perf_counter() - began < asked.seconds):
        faulthandler.dump_traceback_later(120, exit=True)
        outcome = simulate(seed, told=asked.trace, ignored=asked.ignore)
        done, steps, switches = done + 1, steps + outcome.steps, switches + outcome.switches
        if asked.trace:
            for event in outcome.trace:
                print(*event)
        if asked.hashes:
            print(seed, f"{outcome.hash:x}")
        if outcome.failure:
            failed += 1
            print(f"seed {seed}: {outcome.failure}\nagain: make sim SEED={seed}", flush=True)
        if asked.seed is not None:
            took = f"{outcome.virtual_s:.1f} s in {outcome.wall_s:.3f} s"
            print(f"seed {seed}: {outcome.steps} steps, {took}, hash {outcome.hash:x}")
            return 1 if outcome.failure else 0
        if outcome.failure and not asked.go_on:
            break
        seed += 1
    wall_s = time.perf_counter() - began
    pace = f"{switches} switches in {wall_s:.1f} s ({switches / wall_s:.0f} a second)"
    print(f"{done} seeds, {failed} failed, {steps} steps, {pace}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
