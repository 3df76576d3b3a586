"""`@compute`, pending calls, groups, and what the operators make of them, against a target that runs calls here."""

from __future__ import annotations

import asyncio
import copy
import doctest
import inspect
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import skyward as sky
from skyward._compute import ComputeFunction, compute, gather
from skyward.errors import NoActivePoolError
from skyward.model.call import Call
from skyward.runtime.active_pool import enter_target


class HereTarget:
    """Runs calls in this process, as a pool of `nodes` nodes would be asked to; keeps what it was asked."""

    def __init__(self, nodes: int = 2) -> None:
        self.nodes = nodes
        self.asked: list[tuple[str, Any]] = []

    def _run(self, call: Call[Any]) -> Any:
        self.asked.append(("run", call))
        return call.fn(*call.args, **call.kwargs)

    def _broadcast(self, call: Call[Any]) -> list[Any]:
        return [self._run(call) for _ in range(self.nodes)]

    def _run_async(self, call: Call[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._run(call))
        return future

    def _run_parallel(self, calls: tuple[Call[Any], ...], *, return_exceptions: bool) -> tuple[Any, ...]:
        self.asked.append(("run_parallel", return_exceptions))
        return tuple(self._run(call) for call in calls)

    def _run_stream(self, calls: tuple[Call[Any], ...], *, ordered: bool, return_exceptions: bool) -> Iterator[Any]:
        self.asked.append(("run_stream", (ordered, return_exceptions)))
        return (self._run(call) for call in (calls if ordered else reversed(calls)))


@pytest.fixture
def pool() -> HereTarget:
    return HereTarget()


@compute
def add(x: int, y: int = 10, *, scale: int = 1) -> int:
    """Add two numbers."""
    return (x + y) * scale


@compute(timeout=5, retries=2)
def limited() -> str:
    return "done"


def test_the_decorator_keeps_the_functions_face() -> None:
    """Name, documentation, module and signature are the function's; `.local` runs it here; options go into calls."""
    assert (limited().timeout, limited().retries) == (5, 2)
    assert (add.name, add.__name__, add.__doc__, add.__module__) == ("add", "add", "Add two numbers.", __name__)  # type: ignore[attr-defined]
    assert str(inspect.signature(add)) == "(x: 'int', y: 'int' = 10, *, scale: 'int' = 1) -> 'int'"
    assert add.local(1, 2) == 3


def test_a_limit_gives_another_call() -> None:
    """`with_timeout` leaves the call as it was."""
    call = add(1)
    other = call.with_timeout(2.5)

    assert (call.timeout, other.timeout, other.args) == (None, 2.5, (1,))
    assert other.with_timeout(None).timeout is None
    assert call.timeout is None


def test_a_method_gets_its_instance(pool: HereTarget) -> None:
    """A decorated method is bound to its instance, which is sent as the first argument."""

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @compute
        def predict(self, x: int) -> int:
            return self.factor * x

    model = Model(3)
    call = model.predict(5)

    assert call.args == (model, 5)
    assert call >> pool == 15
    assert isinstance(Model.predict, ComputeFunction)


@pytest.mark.parametrize("target", [sky, sky.sky], ids=["module", "singleton"])
def test_sky_is_the_innermost_open_pool(target: Any, pool: HereTarget) -> None:
    """The module and `sky.sky` mean the pool opened last, for every operator."""
    outer = HereTarget(nodes=5)
    leave_outer = enter_target(outer)
    leave = enter_target(pool)
    try:
        assert add(1) >> target == 11
        assert add(1) @ target == [11, 11]
        assert (add(1) > target).result() == 11
        assert (add(1) & add(2)) >> target == (11, 12)
        assert list(gather(add(1), stream=True) >> target) == [11]
        leave()
        assert len(add(1) @ target) == 5
    finally:
        leave_outer()


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def test_each_thread_means_its_own_pool() -> None:
    """A pool that another thread opens or closes meanwhile changes nothing here."""
    mine, other = HereTarget(nodes=2), HereTarget(nodes=3)
    leave_mine = enter_target(mine)
    with ThreadPoolExecutor(1) as thread:
        leave_other = thread.submit(enter_target, other).result()
        assert len(add(1) @ sky) == 2
        assert len(thread.submit(lambda: add(1) @ sky).result()) == 3
        leave_mine()
        assert len(thread.submit(lambda: add(1) @ sky).result()) == 3
        leave_other()


def test_a_thread_without_a_pool_takes_the_only_one() -> None:
    """Of several it takes none: the error names them."""
    first, second = HereTarget(nodes=2), HereTarget(nodes=3)
    leave_first = enter_target(first)
    assert len(in_thread(lambda: add(1) @ sky)) == 2
    leave_second = enter_target(second)
    with pytest.raises(NoActivePoolError) as refused:
        in_thread(lambda: add(1) >> sky)
    assert repr(first) in str(refused.value)
    assert repr(second) in str(refused.value)
    leave_first()
    assert len(in_thread(lambda: add(1) @ sky)) == 3
    leave_second()


def test_tasks_mean_the_pool_they_were_started_in() -> None:
    """An asyncio task has the context of its start; a pool that it opens is its own."""
    outer = HereTarget(nodes=2)

    async def of_its_own(nodes: int) -> int:
        mine = HereTarget(nodes=nodes)
        leave = enter_target(mine)
        await asyncio.sleep(0)
        found = len(add(1) @ sky)
        leave()
        return found

    async def main() -> tuple[int, ...]:
        leave = enter_target(outer)
        counts = await asyncio.gather(of_its_own(5), of_its_own(6))
        inherited = await asyncio.to_thread(lambda: len(add(1) @ sky))
        leave()
        return (*counts, inherited)

    assert asyncio.run(main()) == (5, 6, 2)


def test_a_call_that_is_dropped_unsent_is_a_warning(pool: HereTarget) -> None:
    """At the line that dropped it; what was sent, shown or asked for is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        add(1)
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        assert add(1) >> pool == 11
        assert gather(add(1), add(2)) >> pool == (11, 12)
        assert repr(add(1)) == "add(1)"

    assert [str(each.message) for each in caught] == [
        "A call of add() was dropped and never run. Give it to a pool: `add(...) >> pool`; `.local(...)` of the "
        "function runs it in this process."
    ]
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


# groups


def test_a_group_gives_results_in_the_order_of_its_calls(pool: HereTarget) -> None:
    """`&` and `gather` make the same group, of any size; it is run in one request."""
    assert (add(1) & add(2) & limited()) >> pool == (11, 12, "done")
    assert gather(add(1), add(2), limited()) >> pool == (11, 12, "done")
    assert (add(1) & (add(2) & add(3))) >> pool == (11, 12, 13)
    assert ((add(1) & add(2)) & (add(3) & add(4))) >> pool == (11, 12, 13, 14)
    assert [what for what, _ in pool.asked if what != "run"] == ["run_parallel"] * 4


def test_a_group_that_returns_exceptions_keeps_to_it(pool: HereTarget) -> None:
    """Also with further calls on either side."""
    group = gather(add(1), return_exceptions=True)
    assert (group & add(2)) >> pool == (group.with_timeout(1) & add(2)) >> pool == (11, 12)
    assert (add(1) & group) >> pool == (11, 11)
    assert list(gather(add(1), stream=True, return_exceptions=True) >> pool) == [11]
    asked = [how for what, how in pool.asked if what != "run"]
    assert asked == [True] * 3 + [(True, True)]


def test_a_timeout_for_a_group_is_one_for_each_call() -> None:
    """`with_timeout` of a group or stream sets the limit of every call in it."""
    calls = add(1), limited()

    assert [call.timeout for call in (calls[0] & calls[1]).with_timeout(7).calls] == [7, 7]
    assert [call.timeout for call in gather(*calls, stream=True).with_timeout(8).calls] == [8, 8]
    assert calls[0].timeout is None


def test_compute_functions_are_pickled_by_name() -> None:
    """A compute function of a module, and `sky.sky`, are the same object after pickling and copying."""
    assert pickle.loads(pickle.dumps(sky.sky)) is sky.sky
    assert copy.deepcopy(sky.sky) is sky.sky
    assert copy.copy(add) is add


def test_a_compute_function_without_a_place_is_pickled_by_value() -> None:
    """One that no name leads to takes its function and options along."""
    lazy = compute(math.sqrt, timeout=3, retries=1)

    back = pickle.loads(pickle.dumps(lazy))

    assert (back.fn, back.timeout, back.retries) == (math.sqrt, 3, 1)


def test_the_documentation_is_true() -> None:
    """The examples in docstrings give what they say."""
    done = doctest.testmod(sys.modules["skyward._compute"])

    assert (done.failed, done.attempted) == (0, 3)
