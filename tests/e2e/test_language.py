"""Every operator and method, on containers and on processes."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyward as sky
from tests.e2e.functions import (
    appended,
    count,
    double,
    double_later,
    endless,
    greet,
    place,
    positive,
    sleeping_node,
    slow,
    where,
)
from tests.printed import Printed


def test_one_node(pool: sky.ComputePool) -> None:
    """`>>` runs once and returns what the function returns."""
    assert double(4) >> pool == 8
    assert greet("you", greeting="good day") >> pool == "good day you"


def test_every_node(pool: sky.ComputePool) -> None:
    """`@` runs once on every node; the list's index is the node."""
    places = where() @ pool

    assert isinstance(places, list)
    assert [node for node, _ in places] == [0, 1]
    assert len({pid for _, pid in places}) == 2 or places[0] != places[1]


@pytest.mark.alone
def test_background(pool: sky.ComputePool) -> None:
    """`>` returns a future at once."""
    started = time.perf_counter()
    future = slow(5, 0.3) > pool
    returned = time.perf_counter() - started

    assert isinstance(future, Future)
    assert returned < 0.2
    assert future.result(60) == 5


@pytest.mark.alone
def test_asynchronous_functions_run_to_their_end(pool: sky.ComputePool, threads_pool: sky.ComputePool) -> None:
    """Each in an event loop of its own; where a node runs several calls at once, beside each other."""
    assert double_later(2) >> pool == 4
    assert sky.gather(*(double_later(n, 0.3) for n in range(4))) >> threads_pool == (0, 2, 4, 6)
    with pytest.raises(ValueError, match="-1 is below 0"):
        double_later(-1) >> pool
    with pytest.raises(sky.errors.TaskTimeoutError):
        double_later(1, 60).with_timeout(0.5) >> pool
    assert double_later(5) >> pool == 10


def test_background_calls_can_be_awaited(pool: sky.ComputePool) -> None:
    """The event loop is free meanwhile; errors arrive, and a task that is cancelled cancels its call."""

    async def main() -> tuple[list[int], bool]:
        ticks = asyncio.create_task(asyncio.sleep(0.05, True))
        calls: list[Any] = [slow(n, 0.2) > pool for n in range(3)]
        results = await asyncio.gather(*calls)
        with pytest.raises(ValueError, match="below 0"):
            await _awaited(double_later(-1) > pool)
        future = slow(1, 60) > pool
        waiting = asyncio.ensure_future(_awaited(future))
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert future.cancelled()
        return results, ticks.done()

    async def _awaited(future: Any) -> Any:
        return await future

    assert asyncio.run(main()) == ([0, 1, 2], True)
    assert double(1) >> pool == 2


@pytest.mark.alone
def test_group(pool: sky.ComputePool) -> None:
    """`&` makes a group that runs at once, `gather` one of any size; results are a tuple in the order of the calls."""
    started = time.perf_counter()
    result = (slow(1, 0.4) & slow(2, 0.4)) >> pool
    took = time.perf_counter() - started

    assert result == (1, 2)
    assert took < 0.75
    assert sky.gather(*(double(n) for n in range(20))) >> pool == tuple(range(0, 40, 2))
    assert sky.gather() >> pool == ()


def test_gather_stream(pool: sky.ComputePool) -> None:
    """In the order of the calls by default; with `ordered=False` quick calls overtake slow ones."""
    for ordered, expected in ((True, [1, 2]), (False, [2, 1])):
        stream = sky.gather(slow(1, 0.6), slow(2, 0.0), stream=True, ordered=ordered) >> pool
        assert list(stream) == expected


def test_stream_closed_early_stops_the_rest(pool: sky.ComputePool) -> None:
    """Closing the iterator cancels what has not run; the pool is free at once."""
    stream = sky.gather(*(slow(n, 0.05) for n in range(400)), stream=True) >> pool
    assert next(stream) == 0
    stream.close()  # type: ignore[attr-defined] # a generator in fact
    started = time.perf_counter()
    assert double(1) >> pool == 2

    assert time.perf_counter() - started < 10


def test_map(pool: sky.ComputePool) -> None:
    """It keeps the order of the items."""
    assert pool.map(double, range(50)) == [2 * n for n in range(50)]
    assert pool.map(lambda x: x + 1, [1, 2]) == [2, 3]
    assert pool.map(pow, [2, 3, 4], (2, 3)) == [4, 27]  # as the builtin `map` does
    assert pool.map(lambda *x: sum(x), range(100), [1] * 100, [10] * 100) == [n + 11 for n in range(100)]
    assert pool.current_nodes() == 2
    assert pool.is_active
    assert pool.concurrency == 1


def test_map_of_many_items(pool: sky.ComputePool) -> None:
    """Items of short functions travel together, and each is a call of its own all the same."""
    assert pool.map(double, range(20_000)) == [2 * n for n in range(20_000)]
    assert pool.map(lambda n: np.arange(n).sum(), [3] * 200) == [3] * 200

    shared: list[int] = []
    assert pool.map(appended, [shared] * 500) == [[1]] * 500
    assert [next(items) for items in pool.map(lambda n: (each for each in [n]), range(100))] == list(range(100))
    with pytest.raises(ZeroDivisionError) as caught:
        pool.map(lambda n: 1 // (n - 700), range(1000))
    assert "for item 700 of the map: 700" in caught.value.__notes__


@pytest.mark.parametrize("way", ["map", "many", "gather", "stream", "journal"])
def test_exceptions_in_place_of_results(pool: sky.ComputePool, tmp_path: Path, way: str) -> None:
    """All calls run, as with asyncio.gather; without the word the error names the item, where there is one."""
    items = [1, 0, 2, -1, *range(3, 200 if way == "many" else 5)]
    calls = [positive(item) for item in items]
    options: dict[str, Any] = {"journal": tmp_path / "j"} if way == "journal" else {}
    if way == "gather":
        found = list(sky.gather(*calls, return_exceptions=True) >> pool)
    elif way == "stream":
        found = list(sky.gather(*calls, stream=True, return_exceptions=True) >> pool)
    else:
        found = pool.map(positive, items, return_exceptions=True, **options)
        with pytest.raises(ValueError, match="is not positive") as caught:
            pool.map(positive, items, **options)
        assert any(
            re.fullmatch(r"for item (1 of the map: 0|3 of the map: -1)", note) for note in caught.value.__notes__
        )
    assert [str(each) if isinstance(each, ValueError) else each for each in found] == [
        item if item > 0 else f"{item} is not positive" for item in items
    ]


def test_a_map_of_slow_calls_uses_all_nodes(pool: sky.ComputePool) -> None:
    """An item does not wait behind others while another node has nothing to do."""
    nodes = pool.map(sleeping_node, [0.01] * 100)
    assert min(Counter(nodes).values()) > 25


def test_generator(pool: sky.ComputePool) -> None:
    """A generator function streams, item by item, however many."""
    items = count(1000) >> pool

    assert next(items) == 0
    assert list(items) == list(range(1, 1000))
    left, right = count(40) @ pool
    assert list(left) == list(right) == list(range(40))


def test_what_a_generator_returns(pool: sky.ComputePool) -> None:
    """It is the value of `yield from`, on a node and in this process."""

    def read() -> Iterator[int]:
        returned.append((yield from (count(3) >> pool)))
        returned.append((yield from count.local(2)))

    returned: list[object] = []
    assert list(read()) == [0, 1, 2, 0, 1]
    assert returned == ["3 items", "2 items"]


def test_generator_waits_for_its_reader(pool: sky.ComputePool) -> None:
    """A generator is at most a window ahead of who reads it."""

    @sky.compute
    def stamped() -> Iterator[float]:
        while True:
            yield time.monotonic()

    items = iter(stamped() >> pool)
    first = next(items)
    time.sleep(0.5)
    window = [next(items) for _ in range(40)]
    items.close()  # type: ignore[attr-defined] # a remote stream can be closed

    assert window[5] - first < 0.4
    assert window[-1] - first > 0.4


@pytest.mark.parametrize("kind", ["pool", "threads_pool"])
def test_calls_while_generators_are_read(pool: sky.ComputePool, threads_pool: sky.ComputePool, kind: str) -> None:
    """A generator that waits for its reader keeps no slot, and goes on in its own thread."""
    pool = {"pool": pool, "threads_pool": threads_pool}[kind]
    busy = [iter(endless() >> pool) for _ in range(5)]
    threads = [next(items) for items in busy]
    for x in count(40) >> pool:
        assert (double(x) > pool).result(60) == 2 * x  # with a limit, as it would wait for ever
        assert [next(items) for items in busy] == threads
    assert [x + y for x, y in zip(count(40) >> pool, count(40) >> pool, strict=True)] == list(range(0, 80, 2))
    assert [list(items) for items in pool.map(count, [40] * 9)] == [list(range(40))] * 9
    for items in zip(*(count(40) @ pool), strict=True):
        assert set(double(items[0]) @ pool) == {2 * items[0]}

    shared, taken = count(100) >> pool, list[int]()
    with ThreadPoolExecutor(4) as readers:
        for _ in range(4):
            readers.submit(lambda: taken.extend(double(x) >> pool for x in shared))
    assert sorted(taken) == list(range(0, 200, 2))


def test_generators_that_nobody_waits_for_begin_when_a_slot_is_free(pool: sky.ComputePool) -> None:
    """Of many, only as many are open as there are slots, until somebody waits for another."""
    futures = [count(40) > pool for _ in range(6)]
    first = [future.result(60) for future in futures[:2]]
    assert [next(iter(items)) for items in first] == [0, 0]
    assert double(1) @ pool == [2, 2]
    assert [future.done() for future in futures] == [True] * 2 + [False] * 4
    assert [list(future.result(60)) for future in reversed(futures)] == [list(range(40))] * 4 + [list(range(1, 40))] * 2

    groups = sky.gather(*[count(40)] * 6, stream=True, ordered=False) >> pool
    assert list(zip(*groups, strict=True)) == [(n,) * 6 for n in range(40)]


def test_a_generator_that_waits_is_closed_behind_the_call_that_has_its_slot(
    pool: sky.ComputePool, printed: Printed
) -> None:
    """Its `finally` blocks have run before the next call."""
    streams = [iter(endless("behind") >> pool) for _ in range(2)]
    assert all(next(items) for items in streams)
    printed.read()
    calls = [sleeping_node(0.3) > pool for _ in range(2)]
    del streams
    assert sorted(call.result(60) for call in calls) == [0, 1]
    assert double(1) @ pool == [2, 2]
    assert printed.read().out.count("closed behind") == 2


def test_closed_generator_frees_the_node(pool: sky.ComputePool) -> None:
    """Closing a stream stops its generator, `finally` blocks included."""
    streams = endless() @ pool
    for items in streams:
        assert next(iter(items))
        items.close()  # type: ignore[attr-defined] # a remote stream can be closed

    started = time.perf_counter()
    assert double(1) @ pool == [2, 2]

    assert time.perf_counter() - started < 15


def test_interleaved_broadcasts_and_singles(pool: sky.ComputePool) -> None:
    """200 broadcasts and 200 single calls from many threads: every answer reaches its own caller."""

    def broadcast(n: int) -> bool:
        return double(n) @ pool == [2 * n, 2 * n]

    def single(n: int) -> bool:
        return double(-n) >> pool == -2 * n

    with ThreadPoolExecutor(16) as threads:
        outcomes = [threads.submit(check, n) for n in range(200) for check in (broadcast, single)]

    assert all(outcome.result() for outcome in outcomes)


def test_cancel(pool: sky.ComputePool) -> None:
    """Cancelling a future stops the running function; the node takes the next call."""
    futures = [slow(n, 30) > pool for n in range(2)]
    time.sleep(0.3)
    started = time.perf_counter()

    assert all(future.cancel() for future in futures)
    assert double(2) @ pool == [4, 4]
    assert time.perf_counter() - started < 15


def test_timeout(pool: sky.ComputePool) -> None:
    """A call beyond its limit is stopped, and the error says so; waiting in the queue does not count."""
    started = time.perf_counter()
    with pytest.raises(sky.errors.TaskTimeoutError, match=r"slow\(\) ran longer than its limit of 0\.4 s on node"):
        slow(1, 30).with_timeout(0.4) >> pool
    assert time.perf_counter() - started < 15

    patient = [slow(n, 0.4).with_timeout(2) for n in range(12)]
    assert sky.gather(*patient) >> pool == tuple(range(12))


def test_context_of_a_function(pool: sky.ComputePool) -> None:
    """Inside a function `instance_info()` is the node's place; outside a pool it is None."""

    first, second = place() @ pool
    assert (first["node"], second["node"]) == (0, 1)
    assert (first["head"], second["head"]) == (True, False)
    assert first["addr"] == second["addr"]
    assert first["port"] == second["port"] > 1024
    assert first["peers"] == second["peers"] == [0, 1]
    assert first["total"] == 2
    assert first["gpus"] == 0
    assert first["job"] == pool.id
    assert first["env"]
    assert sky.instance_info() is None
