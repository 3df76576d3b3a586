"""A group of ranks of PyTorch that reduces over gloo, round after round, while one of them is killed or stopped."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import skyward as sky
from skyward.errors import WorkerLostError
from tests.chaos import functions
from tests.chaos.collector import collecting
from tests.chaos.history import Fault
from tests.chaos.killers import VARIABLE, Strike, kill, stop, striking
from tests.chaos.places import leftovers, local
from tests.chaos.workload import Result

RANKS = 2
REDUCTIONS = 100  # of a round, some 2 ms each
ROUND_S = 60.0  # a round takes no longer, the group's new start included


def run(rounds: int, seed: str) -> Result:
    """Run so many rounds; in three of four something strikes in the middle, in every second the call has retries."""
    chance = random.Random(seed)
    place, token, kinds, broken = local(), os.urandom(8).hex(), Counter[str](), list[str]()
    faults: list[Fault] = []
    began = time.monotonic()
    with collecting(place.host) as collector:
        settings: dict[str, Any] = {"plugins": [sky.plugins.torch()], "env": {VARIABLE: token, "OMP_NUM_THREADS": "1"}}
        pool = sky.ComputePool(sky.Local(), nodes=RANKS, display="quiet", **settings)
        with contextlib.redirect_stderr(io.StringIO()), pool:
            strikes = [
                kill(token, "worker"), kill(token, "agent"), kill(token, "agent", signal.SIGTERM), stop(token, "worker")
            ]  # fmt: skip
            for number in range(1, rounds + 1):
                retries = 3 if number % 2 else 0
                kind = _round(pool, number, collector.address, retries, strikes if number % 4 else [], chance, faults)
                kinds[kind] += 1
                if kind not in ("result", "lost"):
                    broken.append(f"Round {number} ended with {kind}")
                elif kind == "lost" and (retries or not number % 4):
                    broken.append(f"Round {number} was lost with {retries} retries.")
        if left := collector.wait_ended(place.gone_s):
            broken.append(f"{left} processes of the group were left.")
        runs = collector.close()
    most = Counter(run.number for run in runs)
    broken += [
        f"Round {number} ran {count} times on {RANKS} ranks with {retries} retries."
        for number, count in most.items()
        if count > RANKS * (1 + (retries := 3 if number % 2 else 0))
    ]
    everything = (1 << 30, 1 << 30)  # PyTorch keeps threads and descriptors of its own in this process
    broken += [f"Left after the pool was closed: {what}." for what in leftovers(place, pool.id, token, everything)]
    figures = {
        "rounds": rounds, **kinds, "faults": dict(Counter(fault.kind for fault in faults)),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    return Result(figures, broken)


def _round(
    pool: sky.ComputePool,
    number: int,
    collector: functions.Address,
    retries: int,
    strikes: list[Strike],
    chance: random.Random,
    faults: list[Fault],
) -> str:
    """How a round ended: "result", "lost", or what was wrong with it."""
    call = sky.compute(retries=retries)(functions.reduces.fn)(number, collector, REDUCTIONS)
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            if strikes:
                killer = stack.enter_context(striking(strikes, chance.random().hex(), chance.uniform(0.01, 0.3), 1))
                stack.callback(lambda: faults.extend(killer.stop()))
            answers = call @ pool
    except WorkerLostError as error:
        return "lost" if strikes else f"a loss that nobody caused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        took_s = time.monotonic() - began
    expected = sum(sum(rank + each for rank in range(RANKS)) for each in range(REDUCTIONS))
    members = [members for members, _ in answers]
    if [total for _, total in answers] != [expected] * RANKS:
        return f"wrong sums: {answers}, the model has {expected}"
    if members.count(members[0]) != RANKS or [rank for rank, _ in members[0]] != list(range(RANKS)):
        return f"ranks of different groups: {members}"
    return "result" if took_s < ROUND_S else f"{took_s:.0f} s of waiting"
