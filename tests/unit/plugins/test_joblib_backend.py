"""The joblib backend against a pool of threads in this process: what it sends, when, and what it stops."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import joblib
import pytest
from joblib import Parallel, delayed

from skyward.errors import PoolClosedError
from skyward.plugins._joblib_backend import SkywardBackend, parallel_on
from skyward.wire import payload


@dataclass(frozen=True)
class Frozen(Exception):
    """Forbids what context managers made of generators do to exceptions."""

    code: int


class FakePool:
    """A pool whose nodes are threads; arguments and results are pickled on their way."""

    def __init__(self, slots: int) -> None:
        self.total_slots = slots
        self.threads = ThreadPoolExecutor(slots)
        self.batches: list[int] = []
        self.sent: list[tuple[Any, ...]] = []  # arguments of calls
        self.names: set[str] = set()
        self.cancelled = 0
        self.closed = False
        self.running = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def _series(self) -> FakePool:
        if self.closed:
            raise PoolClosedError("Pool was closed.")
        return self

    def run_async(self, fn: Callable[..., Any], args: tuple[Any, ...], *, name: str) -> Future[Any]:
        data, buffers = payload.dumps(args)
        self.batches.append(len(args[0]))
        self.sent += [arguments for _, arguments, _ in args[0]]
        self.names.add(name)
        future: Future[Any] = self.threads.submit(self._run, fn, data, buffers)
        future.add_done_callback(self._note)
        return future

    def _note(self, future: Future[Any]) -> None:
        self.cancelled += future.cancelled()

    def _run(self, fn: Callable[..., Any], data: bytes, buffers: list[memoryview]) -> Any:
        with self._lock:
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        try:
            return fn(*payload.loads(data, buffers))
        finally:
            with self._lock:
                self.running -= 1


SENT, STOPPED = threading.Event(), threading.Event()  # what calls of a test wait for


@pytest.fixture
def make() -> Iterator[Callable[[int], FakePool]]:
    pools: list[FakePool] = []

    def made(slots: int) -> FakePool:
        pools.append(FakePool(slots))
        return pools[-1]

    for event in (SENT, STOPPED):
        event.clear()
    yield made
    STOPPED.set()
    for pool in pools:
        pool.threads.shutdown()


def on(pool: FakePool) -> Any:
    return parallel_on(cast(Any, pool))


def thread_of(_number: int) -> int:
    return threading.get_ident()


def pause(number: int) -> int:
    time.sleep(0.02)
    return number


def until_stopped(number: int) -> int:
    """0 returns at once."""
    if number:
        STOPPED.wait(60)
    return number


def third(number: int) -> int:
    """3 raises when all calls have been sent; those after it do not return before."""
    if number == 3:
        SENT.wait(60)
        raise KeyError("third")
    return until_stopped(max(0, number - 3))


@pytest.mark.parametrize(
    ("slots", "n_jobs", "expected"),
    [
        (8, -1, 8), (8, None, 8), (8, -2, 7), (8, -20, 2), (8, 3, 3), (8, 100, 8), (8, 1, 2), (8, 0, 0),
        (1, -1, 2), (1, 1, 2), (1, 5, 2), (1, None, 2),
    ],
)  # fmt: skip
def test_effective_n_jobs(slots: int, n_jobs: int | None, expected: int, make: Callable[[int], FakePool]) -> None:
    """Never more than the pool has, and never 1, which would make joblib run the calls in this process."""
    assert SkywardBackend(cast(Any, make(slots))).effective_n_jobs(n_jobs) == expected


def test_calls_are_sent_in_their_order(make: Callable[[int], FakePool]) -> None:
    """The first to be asked for are the first to run, however many wait."""
    pool, interval = make(8), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads overtake each other wherever they can
    try:
        with on(pool):
            Parallel(batch_size=1, pre_dispatch="all")(delayed(abs)(i) for i in range(500))
    finally:
        sys.setswitchinterval(interval)
    assert pool.sent == [(i,) for i in range(500)]


def test_a_closed_pool_is_an_error(make: Callable[[int], FakePool]) -> None:
    """Work is never done here in its stead."""
    pool = make(2)
    pool.closed = True

    with on(pool), pytest.raises(PoolClosedError):
        Parallel()(delayed(thread_of)(i) for i in range(3))


def test_two_loops_at_once_do_not_stop_each_other(make: Callable[[int], FakePool]) -> None:
    """An error in one leaves the batches of the other alone, though they share the backend."""
    pool = make(2)

    with on(pool):
        other = Parallel(return_as="generator", batch_size=1, pre_dispatch="all")(delayed(pause)(i) for i in range(20))
        with pytest.raises(ZeroDivisionError):
            Parallel(batch_size=1)(delayed(divmod)(1, number) for number in (1, 0, 2))
        assert list(other) == list(range(20))


def test_joblib_is_as_it_was_afterwards(make: Callable[[int], FakePool]) -> None:
    """Default backend and warning filters, after an ordinary end and after an error, whatever stood around it."""
    filters = list(warnings.filters)
    with joblib.parallel_config(backend="threading", n_jobs=3):
        before = joblib.parallel._backend.config
        with on(make(2)):
            assert isinstance(joblib.parallel.get_active_backend()[0], SkywardBackend)
        with pytest.raises(KeyError), on(make(2)):
            raise KeyError
        assert joblib.parallel._backend.config is before

        with pytest.raises(Frozen), on(make(2)):
            raise Frozen(3)
        assert joblib.parallel._backend.config is before

    assert type(joblib.parallel.get_active_backend()[0]).__name__ == "LokyBackend"
    assert warnings.filters == filters


# scikit-learn's configuration and warning filters --------------------------------------------------------------------
