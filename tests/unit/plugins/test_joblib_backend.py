"""The joblib backend against a pool of threads in this process: what it sends, when, and what it stops."""

from __future__ import annotations

import pickle
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import joblib
import pytest
from joblib import Parallel, delayed
from sklearn.utils.parallel import Parallel as SklearnParallel
from sklearn.utils.parallel import delayed as sklearn_delayed

from skyward.errors import PoolClosedError
from skyward.plugins import _joblib, _joblib_backend
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


@pytest.mark.parametrize("n_jobs", [1, 2, 3, -1, None])
def test_calls_run_in_the_pool_and_no_more_at_once_than_asked_for(
    n_jobs: int | None, make: Callable[[int], FakePool]
) -> None:
    """Also for n_jobs=1: one after the other, but there."""
    pool = make(4)

    with on(pool):
        found = Parallel(n_jobs=n_jobs)(delayed(thread_of)(number) for number in range(30))
        pool.most_at_once = 0
        assert Parallel(n_jobs=n_jobs, batch_size=1)(delayed(pause)(i) for i in range(12)) == list(range(12))

    assert threading.get_ident() not in found
    assert pool.most_at_once == (4 if n_jobs in (-1, None) else n_jobs)


def test_no_jobs_are_an_error(make: Callable[[int], FakePool]) -> None:
    """n_jobs=0 has no meaning, and is not taken for something else."""
    with on(make(2)), pytest.raises(RuntimeError, match="no active worker"):
        Parallel(n_jobs=0)(delayed(thread_of)(i) for i in range(3))


def test_many_small_calls_travel_together(make: Callable[[int], FakePool]) -> None:
    """10,000 calls take a few hundred trips at most, whose size grows with what they bring."""
    pool = make(2)

    with on(pool):
        assert Parallel()(delayed(abs)(-number) for number in range(10_000)) == list(range(10_000))

    assert sum(pool.batches) == 10_000
    assert pool.batches[0] == 1
    assert max(pool.batches) >= 100
    assert len(pool.batches) < 400
    assert pool.names == {"abs"}


def test_long_calls_travel_alone(make: Callable[[int], FakePool]) -> None:
    """Nothing is gained by making a worker hold what another could do."""
    pool = make(2)

    with on(pool):
        Parallel()(delayed(time.sleep)(0.3) for _ in range(6))

    assert set(pool.batches) == {1}


def test_results_are_handed_over_in_a_thread_of_its_own(make: Callable[[int], FakePool]) -> None:
    """joblib runs the user's generator of calls there: it may itself use the pool, and block no reader of a node."""
    pool, threads = make(2), set()

    def calls() -> Iterator[Any]:
        for number in range(50):
            threads.add(threading.current_thread().name.rpartition("_")[0])
            yield delayed(pause)(number)

    with on(pool):
        Parallel(batch_size=1)(calls())

    assert threads - {""} == {"skyward-joblib"}


def test_an_error_stops_the_rest_and_keeps_its_type(make: Callable[[int], FakePool]) -> None:
    """Batches that wait are not run any more; the backend is usable at once."""
    pool = make(2)

    def calls() -> Iterator[Any]:
        yield from (delayed(third)(number) for number in range(200))
        SENT.set()

    with on(pool):
        with pytest.raises(KeyError, match="third"):
            Parallel(batch_size=1, pre_dispatch="all")(calls())
        assert pool.cancelled >= 200 - 4 - 2  # the first four have ended, and two may run
        STOPPED.set()
        assert Parallel()(delayed(abs)(-i) for i in range(5)) == [0, 1, 2, 3, 4]


def test_what_cannot_be_sent_is_raised(make: Callable[[int], FakePool]) -> None:
    """Also when it comes late, in the thread that hands results over; nobody waits for ever."""
    pool = make(2)

    def calls() -> Iterator[Any]:
        for number in range(40):
            yield delayed(id)(threading.Lock() if number == 39 else number)

    with on(pool), pytest.raises(Exception, match="cannot be pickled"):
        Parallel(batch_size=1)(calls())


def test_a_closed_pool_is_an_error(make: Callable[[int], FakePool]) -> None:
    """Work is never done here in its stead."""
    pool = make(2)
    pool.closed = True

    with on(pool), pytest.raises(PoolClosedError):
        Parallel()(delayed(thread_of)(i) for i in range(3))


def test_timeouts_are_what_joblib_says_they_are(make: Callable[[int], FakePool]) -> None:
    """The exception is that of multiprocessing, and what still waits is stopped."""
    import multiprocessing

    pool = make(2)

    with on(pool), pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.1, batch_size=1, pre_dispatch="all")(delayed(until_stopped)(i) for i in range(1, 21))

    assert pool.cancelled >= 18  # two may run


def test_results_can_be_had_as_they_come(make: Callable[[int], FakePool]) -> None:
    """As generators, in order or not; one that is not read to its end is stopped."""
    pool = make(2)

    with on(pool):
        assert list(Parallel(return_as="generator")(delayed(pause)(i) for i in range(9))) == list(range(9))
        assert sorted(Parallel(return_as="generator_unordered")(delayed(pause)(i) for i in range(9))) == list(range(9))
        calls = (delayed(until_stopped)(i) for i in range(99))
        unread = Parallel(return_as="generator", batch_size=1, pre_dispatch="all")(calls)
        assert next(unread) == 0
        with pytest.warns(UserWarning, match="cancelled"):
            unread.close()
        assert pool.cancelled >= 99 - 1 - 2  # one has ended, and two may run


def test_two_loops_at_once_do_not_stop_each_other(make: Callable[[int], FakePool]) -> None:
    """An error in one leaves the batches of the other alone, though they share the backend."""
    pool = make(2)

    with on(pool):
        other = Parallel(return_as="generator", batch_size=1, pre_dispatch="all")(delayed(pause)(i) for i in range(20))
        with pytest.raises(ZeroDivisionError):
            Parallel(batch_size=1)(delayed(divmod)(1, number) for number in (1, 0, 2))
        assert list(other) == list(range(20))


def test_one_parallel_can_be_used_again_and_again(make: Callable[[int], FakePool]) -> None:
    """Inside its own `with`, where joblib ends the backend once for all its calls."""
    with on(make(2)) as _, Parallel(n_jobs=2) as parallel:
        for _ in range(5):
            assert parallel(delayed(abs)(-i) for i in range(10)) == list(range(10))

    left = [thread for thread in threading.enumerate() if thread.name.startswith("skyward-joblib")]
    for thread in left:
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


def nested(_number: int) -> tuple[int, int, str]:
    outer = threading.get_ident()
    inner = Parallel(n_jobs=4)(delayed(thread_of)(i) for i in range(8))
    backend, _ = joblib.parallel.get_active_backend()
    return len(set(inner)), int(inner[0] == outer), type(backend).__name__


def test_nested_loops_are_sequential(make: Callable[[int], FakePool]) -> None:
    """They run where the call runs, one after the other, also when more is asked for."""
    with on(make(2)):
        assert set(Parallel()(delayed(nested)(i) for i in range(4))) == {(1, 1, "SequentialBackend")}


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


def configuration(_number: int) -> tuple[bool, list[str]]:
    import sklearn

    return bool(sklearn.get_config()["assume_finite"]), [str(entry[2]) for entry in warnings.filters]


def test_sklearn_settings_travel(make: Callable[[int], FakePool]) -> None:
    """Configuration and warning filters are those of the client."""
    import sklearn

    pool = make(2)
    _joblib._restored.cache_clear()
    with on(pool), sklearn.config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)
        found = SklearnParallel()(sklearn_delayed(configuration)(i) for i in range(3))

    assert all(finite for finite, _ in found)
    assert all("<class 'ImportWarning'>" in names for _, names in found)
    assert pool.names == {"configuration"}


def test_filters_of_classes_that_nodes_do_not_have_are_left_out(
    make: Callable[[int], FakePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are kept, in their order; no call fails for want of them."""
    module = types.ModuleType("only_on_the_client")
    exec("class Told(UserWarning): pass", vars(module))
    monkeypatch.setitem(sys.modules, "only_on_the_client", module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        warnings.simplefilter("ignore", vars(module)["Told"])
        warnings.filterwarnings("ignore", "some text", UnicodeWarning)
        data = payload.dumps(_joblib_backend._Filters(warnings.filters))[0]
        expected = list(warnings.filters)
    monkeypatch.delitem(sys.modules, "only_on_the_client")

    found = pickle.loads(data)

    assert len(found) == len(expected) - 1
    assert [entry[2].__name__ for entry in found[:2]] == ["UnicodeWarning", "ResourceWarning"]
    assert found[0][1].pattern == "some text"
