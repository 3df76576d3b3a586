"""Thousands of short calls while things are killed, stopped and cut: what happened, as a history for the checker."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import cache
from typing import Any, NamedTuple

import skyward as sky
from skyward.errors import TaskCancelledError, WorkerLostError
from tests.chaos import functions
from tests.chaos.collector import Collector, collecting
from tests.chaos.history import ALWAYS, Call, Fault, History, Line, Outcome, shown, violations
from tests.chaos.killers import VARIABLE, Killer, Strike
from tests.chaos.places import LEASE_S, Place, held, leftovers

CLIENTS = 4  # threads that submit calls
BATCH = 50  # calls of one gather
AHEAD = 100  # calls in the background per thread
SETTLE_S = 45.0  # once faults have stopped, everything is done by then
CLOSE_S = 25.0  # leaving a pool takes no longer
SHAPES = (
    sky.Worker(),
    sky.Worker(buffer=8),
    sky.Worker(concurrency=3),
    sky.Worker(concurrency=2, executor="process"),
)
_LINE = re.compile(r"\[\d+\] chaos (\S+) (\d+) (\d+)")


class Result(NamedTuple):
    """What a workload came to: its figures and the rules that were broken."""

    figures: dict[str, Any]
    broken: list[str]


class Recorder:
    """The client's half of a history; any thread may add to it."""

    def __init__(self) -> None:
        self._numbers = iter(range(1, 1 << 40))
        self._lock = threading.Lock()
        self.calls: dict[int, Call] = {}
        self.outcomes: list[Outcome] = []

    def call(self, retries: int, data: bytes, *, cancelled: bool = False) -> int:
        """Note a call that is about to be submitted; its number."""
        with self._lock:
            number = next(self._numbers)
            while (number % functions.QUIET == 0) != cancelled:
                number = next(self._numbers)
            expected, now = functions.model(number, data), time.monotonic()
            self.calls[number] = Call(number, retries, expected, now, cancelled, prints=not cancelled)
        return number

    def outcome(self, number: int, data: bytes, value: Any, error: BaseException | None) -> None:
        """Note how a call ended."""
        at = time.monotonic()
        match error:
            case None:
                answer, echo = value
                outcome = Outcome(number, "result", at, answer)
                if echo != data[::-1]:
                    outcome = Outcome(number, "error", at, text="its echo is wrong")
            case CancelledError() | TaskCancelledError():
                outcome = Outcome(number, "cancelled", at)
            case WorkerLostError():
                outcome = Outcome(number, "lost", at, text=str(error).splitlines()[0])
            case _:
                outcome = Outcome(number, "error", at, text=f"{type(error).__name__}: {error}")
        with self._lock:
            self.outcomes.append(outcome)


class Client:
    """One thread's share of the calls: gathers of calls that must get results, and all kinds in the background."""

    def __init__(self, pool: sky.ComputePool, collector: Collector, recorder: Recorder, seed: str) -> None:
        self._pool, self._collector, self._recorder = pool, collector, recorder
        self._chance = random.Random(seed)
        self._pending: set[Future[Any]] = set()

    def run(self, count: int, limit: float) -> None:
        """Make so many calls and wait for their outcomes, until `limit` at the latest."""
        while count > 0 and time.monotonic() < limit:
            size = min(count, BATCH)
            (self._gather if self._chance.random() < 0.4 else self._background)(size, limit)
            count -= size
        while self._pending and time.monotonic() < limit:
            time.sleep(0.01)

    def _gather(self, size: int, _limit: float) -> None:
        made = [self._make(functions.always, ALWAYS) for _ in range(size)]
        gathered: Any = sky.gather(*(call for _, _, call in made), stream=self._chance.random() < 0.5)  # type: ignore[call-overload]
        left = list(made)
        try:
            for value in gathered >> self._pool:
                number, data, _ = left.pop(0)
                self._recorder.outcome(number, data, value, None)
        except BaseException as error:
            for number, data, _ in left:
                self._recorder.outcome(number, data, None, error)

    def _background(self, size: int, limit: float) -> None:
        kinds: Sequence[tuple[Any, int]] = (
            (functions.once, 0), (functions.once, 0), (functions.thrice, 2), (functions.always, ALWAYS),
        )  # fmt: skip
        for _ in range(size):
            while len(self._pending) >= AHEAD and time.monotonic() < limit:
                time.sleep(0.002)
            cancelled = self._chance.random() < 0.03
            fn, retries = self._chance.choice(kinds)
            number, data, call = self._make(fn, retries, cancelled=cancelled)
            future = call > self._pool
            self._pending.add(future)
            future.add_done_callback(self._noting(number, data))
            if cancelled:
                time.sleep(self._chance.uniform(0, 0.004))
                future.cancel()

    def _noting(self, number: int, data: bytes) -> Callable[[Future[Any]], None]:
        def note(future: Future[Any]) -> None:
            if future.cancelled():
                self._recorder.outcome(number, data, None, CancelledError())
            else:
                error = future.exception()
                self._recorder.outcome(number, data, None if error else future.result(), error)
            self._pending.discard(future)

        return note

    def _make(self, fn: Any, retries: int, *, cancelled: bool = False) -> tuple[int, bytes, Any]:
        size = self._chance.choices((0, 200, 100_000, 1_000_000), (85, 10, 4, 1))[0]
        data = self._chance.randbytes(16) * (size // 16)
        number = self._recorder.call(retries, data, cancelled=cancelled)
        return number, data, fn(number, self._collector.address, self._chance.uniform(1, 5), data)


def run(
    place: Place,
    calls: int,
    seed: str,
    *,
    interval_s: float = 1.0,
    extra: Sequence[Callable[[str], Strike]] = (),
    **settings: Any,
) -> Result:
    """Run so many calls in a place under faults, and check their history.

    Args:
        place: where.
        calls: how many, over all threads of the client.
        seed: decides calls and faults.
        interval_s: seconds between two faults.
        extra: more that can be broken, made with the pool's token.
        settings: of the pool, besides those of the place.
    """
    token = os.urandom(8).hex()
    _open_first_pool()
    before, recorder, printed = held(), Recorder(), io.StringIO()
    with collecting(place.host) as collector:
        shape = random.Random(seed).choice(SHAPES)
        settings = {**place.settings, "env": {VARIABLE: token}, "ttl": LEASE_S, "worker": shape, **settings}
        began = time.monotonic()
        pool = sky.ComputePool(**settings)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            with pool:
                strikes = [*place.strikes(token, lambda: pool.id), *(make(token) for make in extra)]
                faults, quiet_at, whole_s = _under_faults(
                    pool, collector, recorder, strikes, calls, seed, interval_s
                )  # fmt: skip
                closing = time.monotonic()
            closed_s = time.monotonic() - closing
        ended = collector.wait_ended(place.gone_s)
        runs = collector.close()
    history = History(
        calls=tuple(recorder.calls.values()),
        outcomes=tuple(recorder.outcomes),
        runs=runs,
        lines=tuple(Line(p, int(s), int(n)) for p, s, n in _LINE.findall(printed.getvalue())),
        faults=faults,
        leftovers=leftovers(place, pool.id, token, before),
        quiet_at=quiet_at,
        settle_s=SETTLE_S,
    )
    broken = violations(history)
    broken += [f"{ended} processes still had a connection {place.gone_s:g} s after the pool was closed."] * (ended > 0)
    broken += [f"Leaving the pool took {closed_s:.1f} s."] * (closed_s > CLOSE_S)
    broken += ["The pool was not whole again once faults had stopped."] * (whole_s is None)
    figures = _figures(history, time.monotonic() - began, whole_s, closed_s)
    return Result({"worker": str(settings["worker"]), **figures}, broken)


@cache
def _open_first_pool() -> None:
    """A process keeps what its first pool needs: the thread of `skyward.system.process_end`. No other adds to it."""
    with sky.ComputePool(sky.Local(), display="quiet"):
        pass


def _under_faults(
    pool: sky.ComputePool,
    collector: Collector,
    recorder: Recorder,
    strikes: Sequence[Strike],
    calls: int,
    seed: str,
    interval_s: float,
) -> tuple[tuple[Fault, ...], float, float | None]:
    """The faults, when they were over, and how long it took the pool to be whole again (None: too long)."""
    limit = time.monotonic() + 10 + calls / 50
    clients = [Client(pool, collector, recorder, f"{seed} {number}") for number in range(CLIENTS)]
    share = calls // CLIENTS

    def nearly_whole() -> bool:
        """Whether all nodes but one are up: a pool that has lost all of its hosts rightly refuses calls."""
        return pool.current_nodes() >= pool._settings.nodes.desired - 1

    with Killer(strikes, seed, interval_s, nearly_whole) as killer:
        threads = [threading.Thread(target=client.run, args=(share, limit), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        while any(t.is_alive() for t in threads) and len(recorder.outcomes) < 0.9 * calls and time.monotonic() < limit:
            time.sleep(0.02)
    quiet_at = time.monotonic()
    for thread in threads:
        thread.join(max(0.0, quiet_at + SETTLE_S - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(2)  # a deadlock's first witness
    return tuple(killer.faults), quiet_at, _whole(pool, quiet_at)


def _whole(pool: sky.ComputePool, quiet_at: float) -> float | None:
    limit = quiet_at + SETTLE_S
    while pool.current_nodes() < pool.instance_count or pool.instance_count < pool._settings.nodes.desired:
        if time.monotonic() > limit:
            return None
        time.sleep(0.02)
    return time.monotonic() - quiet_at


def _figures(history: History, took_s: float, whole_s: float | None, closed_s: float) -> dict[str, Any]:
    return {
        "calls": len(history.calls),
        **Counter(outcome.kind for outcome in history.outcomes),
        "runs": len(history.runs),
        "lines": len(history.lines),
        "faults": dict(Counter(fault.kind for fault in history.faults)),
        "seconds": round(took_s, 1),
        "whole again after, s": None if whole_s is None else round(whole_s, 1),
        "left in, s": round(closed_s, 1),
    }


def explained(result: Result, seed: str) -> str:
    """A failed workload in words."""
    return f"SEED={seed}: {len(result.broken)} violations.\n{shown(result.broken)}\n{result.figures}"
