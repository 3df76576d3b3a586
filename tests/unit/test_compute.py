"""`@compute`, pending calls, groups, and what the operators make of them, against a target that runs calls here."""

from __future__ import annotations

import asyncio
import copy
import doctest
import functools
import inspect
import math
import operator
import pickle
import sys
import types
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

import skyward as sky
from skyward._compute import ComputeFunction, Group, PendingCompute, Stream, compute, gather
from skyward.errors import ConfigError, NoActivePoolError
from skyward.model.call import Call
from skyward.model.instance import InstanceInfo
from skyward.runtime.active_pool import enter_target

Run = Callable[[], object]


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

    def _run_parallel(self, calls: tuple[Call[Any], ...]) -> tuple[Any, ...]:
        self.asked.append(("run_parallel", calls))
        return tuple(self._run(call) for call in calls)

    def _run_stream(self, calls: tuple[Call[Any], ...], *, ordered: bool) -> Iterator[Any]:
        self.asked.append(("run_stream", ordered))
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


@compute
def count(n: int) -> Iterator[int]:
    yield from range(n)


def test_a_call_runs_nothing() -> None:
    """Calling a compute function gives the call as a value."""
    call = add(1, scale=3)

    assert isinstance(call, PendingCompute)
    assert (call.fn, call.args, call.kwargs, call.timeout, call.retries) == (add.fn, (1,), {"scale": 3}, None, 0)


def test_the_decorator_keeps_the_functions_face() -> None:
    """Name, documentation, module and signature are the function's; `.local` runs it here."""
    assert (add.name, add.__name__, add.__doc__, add.__module__) == ("add", "add", "Add two numbers.", __name__)  # type: ignore[attr-defined]
    assert str(inspect.signature(add)) == "(x: 'int', y: 'int' = 10, *, scale: 'int' = 1) -> 'int'"
    assert add.local(1, 2) == 3


def test_options_go_into_every_call() -> None:
    """The called form gives its timeout and retries to each call."""
    assert (limited().timeout, limited().retries) == (5, 2)


def test_bare_and_called_forms_are_the_same() -> None:
    """`@compute`, `@compute()` and `compute(fn, timeout=...)` all decorate."""

    def fn() -> int:
        return 1

    assert [type(compute(fn)), type(compute()(fn)), type(compute(fn, timeout=1))] == [ComputeFunction] * 3


def test_a_limit_gives_another_call() -> None:
    """`with_timeout` leaves the call as it was."""
    call = add(1)
    other = call.with_timeout(2.5)

    assert (call.timeout, other.timeout, other.args) == (None, 2.5, (1,))
    assert other.with_timeout(None).timeout is None
    assert call.timeout is None


def test_calls_with_unhashable_arguments_are_hashable() -> None:
    """A call is compared and hashed by identity, whatever it was given."""
    call = add(1, y=[])  # type: ignore[arg-type]

    assert {call: 1}[call] == 1
    assert call != add(1, y=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, r"add\(\): missing a required argument: 'x'"),
        ((1, 2, 3), {}, r"add\(\): too many positional arguments"),
        ((1,), {"x": 2}, r"add\(\): multiple values for argument 'x'"),
        ((1,), {"scales": 2}, r"add\(\): got an unexpected keyword argument 'scales'"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(args: tuple[int, ...], kwargs: dict[str, int], said: str) -> None:
    """Arguments that do not fit raise where the call is written, every time."""
    for _ in range(2):
        with pytest.raises(TypeError, match=said):
            add(*args, **kwargs)


def test_many_shapes_of_arguments_are_all_checked() -> None:
    """A function with any number of arguments remembers a bounded number of shapes, and still checks the rest."""

    def fn(first: int, *rest: int, **more: int) -> int:
        return first + sum(rest) + sum(more.values())

    lazy = compute(fn)
    for n in range(1, 200):
        assert len(lazy(*range(n)).args) == n

    with pytest.raises(TypeError):
        lazy(b=1)  # type: ignore[call-arg]
    assert len(lazy._shapes) < 100


def test_callables_of_every_kind_can_be_decorated(pool: HereTarget) -> None:
    """Partials, functions written in C and lambdas are called like functions."""
    assert compute(functools.partial(add.local, y=1))(1) >> pool == 2
    assert compute(math.sqrt)(4.0) >> pool == 2.0
    assert compute(print).name == "print"
    assert compute(lambda: 3)() >> pool == 3


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


async def later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "decorates a function, found 3"),
        (add, "add is a compute function already"),
        (later, "later is an asynchronous generator"),
    ],
    ids=["number", "twice", "coroutine"],
)
def test_what_is_no_ordinary_function_is_refused(value: Any, said: str) -> None:
    """Only ordinary and generator functions can be decorated; the error says what to do."""
    with pytest.raises(TypeError, match=said):
        compute(value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_is_positive(seconds: float) -> None:
    """A timeout that is not positive is refused where it is given."""
    with pytest.raises(ConfigError, match="above 0"):
        compute(timeout=seconds)(lambda: None)
    with pytest.raises(ConfigError, match="above 0"):
        add(1).with_timeout(seconds)


def test_retries_are_not_negative() -> None:
    """Negative retries are refused where they are given."""
    with pytest.raises(ConfigError, match="at least 0; found -1"):
        compute(retries=-1)(lambda: None)


# operators


def test_operators_send_calls_to_a_pool(pool: HereTarget) -> None:
    """`>>` runs once, `@` on every node, `>` in the background."""
    call = add(1, 2)

    assert call >> pool == 3
    assert call @ pool == [3, 3]
    assert (call > pool).result() == 3
    assert pool.asked[0] == ("run", call)


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


def test_pools_may_be_closed_in_any_order(pool: HereTarget) -> None:
    """What is closed is never meant, whatever was opened after it."""
    outer, inner = HereTarget(nodes=1), HereTarget(nodes=3)
    leaves = [enter_target(each) for each in (outer, pool, inner)]
    assert len(add(1) @ sky) == 3
    leaves[1]()
    assert len(add(1) @ sky) == 3
    leaves[0]()
    assert len(add(1) @ sky) == 3
    leaves[2]()
    with pytest.raises(NoActivePoolError):
        add(1) >> sky


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


def test_on_a_node_sky_says_that_calls_are_sent_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no pool to open in a function that runs in one."""
    place = InstanceInfo(node=1, total_nodes=2, head_addr="h", head_port=1)
    monkeypatch.setenv("COMPUTE_POOL", place.to_json())
    with pytest.raises(NoActivePoolError, match=r"runs on node 1 of one\. .*let the client send it"):
        add(1) >> sky


@pytest.mark.parametrize("target", [sky, sky.sky], ids=["module", "singleton"])
def test_without_a_pool_sky_says_how_to_open_one(target: Any) -> None:
    """With no pool open the error derives from RuntimeError and says how to open one."""
    runs: list[Run] = [lambda: add(1) >> target, lambda: add(1) @ target, lambda: add(1) > target]
    for run in runs:
        with pytest.raises(NoActivePoolError, match=r"`add\(1\) (>>|@|>) sky`.*sky\.ComputePool\(.*@sky\.pool\("):
            run()
    assert issubclass(NoActivePoolError, RuntimeError)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (3, "3 of type int"),
        (None, "None of type NoneType"),
        (types, "the module types"),
        (HereTarget, "the class HereTarget"),
        (add, r"the function add, which was not called: write add\(\.\.\.\)"),
        (add(2), r"add\(2\) of type PendingCompute"),
    ],
    ids=["number", "none", "module", "class", "function", "call"],
)
def test_a_target_that_is_no_pool_is_named(target: Any, found: str) -> None:
    """A wrong right-hand side raises TypeError that names what was found; nothing is compared by accident."""
    runs: list[Run] = [
        lambda: add(1) >> target,
        lambda: add(1) @ target,
        lambda: add(1) > target,
        lambda: (add(1) & add(2)) >> target,
        lambda: gather(stream=True) >> target,
    ]
    for run in runs:
        with pytest.raises(TypeError, match=found):
            run()


@pytest.mark.parametrize("compare", [lambda p: p < 3, lambda p: p > 3, lambda p: p >= 3, lambda p: p <= add(1)])
def test_calls_are_not_compared(compare: Any) -> None:
    """Comparisons that mean nothing raise TypeError."""
    with pytest.raises(TypeError):
        compare(add(1))


@pytest.mark.parametrize(
    "use",
    [bool, list, len, int, float, lambda p: p + 1, lambda p: 1 + p, lambda p: p * 2, lambda p: p[0], lambda p: 3 / p],
    ids=["bool", "list", "len", "int", "float", "sum", "reflected", "product", "item", "quotient"],
)
def test_a_call_that_is_used_as_its_result_says_how_to_run_it(use: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"add\(1\) is a call that has not run, not its result.*`add\(1\) >> pool`"):
        use(add(1))
    with pytest.raises(AttributeError, match=r"add\(1\) is a call that has not run, so it has no 'shape'"):
        add(1).shape  # type: ignore[attr-defined]


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


def test_a_function_that_was_not_called_says_so(pool: HereTarget) -> None:
    target: Any = pool
    function: Any = add
    for operate in (operator.rshift, operator.matmul, operator.gt, operator.and_):
        with pytest.raises(TypeError, match=r"add is a function that was not called: write `add\(\.\.\.\) >> pool`"):
            operate(function, target)


@pytest.mark.parametrize("value", [11, None, "text", 1.5, {1}, np.ones(3)], ids=lambda each: type(each).__name__)
def test_a_result_on_the_left_of_a_pool_says_that_the_decorator_is_missing(value: Any) -> None:
    pools: list[Any] = [sky.sky, sky.ComputePool(sky.Local())]
    for target in pools:
        for operate in (operator.rshift, operator.matmul, operator.gt):
            with pytest.raises(TypeError, match=r"found .* on the left of the operator. Decorate the function"):
                operate(value, target)


def test_a_list_of_calls_on_the_left_of_a_pool_says_gather() -> None:
    target: Any = sky.sky
    with pytest.raises(TypeError, match=r"`gather\(\*calls\) >> pool`"):
        [add(1), add(2)] >> target


def test_an_asynchronous_function_runs_here_in_an_event_loop_of_its_own() -> None:
    @compute
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x

    assert later.local(3) == 3
    assert asyncio.run(later.fn(3)) == 3  # type: ignore[arg-type]


# groups


def test_a_group_gives_results_in_the_order_of_its_calls(pool: HereTarget) -> None:
    """`&` and `gather` make the same group, of any size; it is run in one request."""
    assert (add(1) & add(2) & limited()) >> pool == (11, 12, "done")
    assert gather(add(1), add(2), limited()) >> pool == (11, 12, "done")
    assert (add(1) & (add(2) & add(3))) >> pool == (11, 12, 13)
    assert ((add(1) & add(2)) & (add(3) & add(4))) >> pool == (11, 12, 13, 14)
    assert [what for what, _ in pool.asked if what != "run"] == ["run_parallel"] * 4


@pytest.mark.parametrize(("ordered", "expected"), [(True, [11, 12]), (False, [12, 11])])
def test_a_stream_iterates(pool: HereTarget, ordered: bool, expected: list[int]) -> None:
    """`gather(stream=True)` gives an iterator, in the order of the calls or as results come."""
    results = gather(add(1), add(2), stream=True, ordered=ordered) >> pool

    assert isinstance(results, Iterator)
    assert list(results) == expected
    assert pool.asked[0] == ("run_stream", ordered)


def test_nothing_gathered_is_nothing(pool: HereTarget) -> None:
    """An empty group is answered at once, without a request."""
    assert gather() >> pool == ()
    assert list(gather(stream=True) >> pool) == []
    assert pool.asked == []


def test_a_timeout_for_a_group_is_one_for_each_call() -> None:
    """`with_timeout` of a group or stream sets the limit of every call in it."""
    calls = add(1), limited()

    assert [call.timeout for call in (calls[0] & calls[1]).with_timeout(7).calls] == [7, 7]
    assert [call.timeout for call in gather(*calls, stream=True).with_timeout(8).calls] == [8, 8]
    assert calls[0].timeout is None


def test_missing_parentheses_are_explained(pool: HereTarget) -> None:
    """`a & b >> pool` means `a & (b >> pool)`; the error asks for parentheses."""
    one: Any = add(1)
    two: Any = add(2)
    runs: list[Run] = [
        lambda: one & two >> pool,
        lambda: one >> pool & two,
        lambda: one & two & two @ pool,
        lambda: (one >> pool) & (one & two),
    ]
    for run in runs:
        with pytest.raises(TypeError, match=r"write `\(a & b\) >> pool` with parentheses"):
            run()


@pytest.mark.parametrize("group", [add(1) & add(2), gather(add(1), stream=True)], ids=["group", "stream"])
def test_groups_refuse_broadcast_and_background(group: Any, pool: HereTarget) -> None:
    """`@` and `>` on a group raise TypeError with a remedy."""
    with pytest.raises(TypeError, match=r"`@` takes one call.*\[call @ pool for call in calls\]"):
        group @ pool
    with pytest.raises(TypeError, match=r"`>` takes one call.*\[call > pool for call in calls\]"):
        group > pool  # noqa: B015


@pytest.mark.parametrize(
    ("given", "said"),
    [([add(1)], r"unpack it: gather\(\*calls\)"), (add, r"write add\(\.\.\.\)"), (3, "argument 1 is 3 of type int")],
    ids=["list", "function", "number"],
)
def test_gather_takes_calls_only(given: Any, said: str) -> None:
    """Anything else is named, with a remedy."""
    with pytest.raises(TypeError, match=said):
        gather(given)


# generators, texts, copies


def test_a_generator_function_gives_an_iterator(pool: HereTarget) -> None:
    """`>>` of a generator function's call is an iterator over its items."""
    items = count(3) >> pool

    assert next(items) == 0
    assert list(items) == [1, 2]


def test_calls_are_shown_as_they_were_written() -> None:
    """The text of a call is the call, long arguments shortened."""
    assert repr(add(1, y=2)) == "add(1, y=2)"
    assert repr(add(1) & add(2)) == "(add(1) & add(2))"
    assert repr(gather(*(add(i) for i in range(9)), stream=True)).startswith("gather((add(0), add(1), add(2), ...)")
    assert len(repr(compute(len)([0] * 100_000))) < 100
    assert repr(sky.sky) == "skyward.sky"


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


def test_groups_are_values() -> None:
    """Groups and streams are frozen."""
    for value in (add(1) & add(2), gather(add(1), stream=True)):
        assert isinstance(value, Group | Stream)
        with pytest.raises(FrozenInstanceError):
            value.calls = ()  # type: ignore[misc]


def test_the_documentation_is_true() -> None:
    """The examples in docstrings give what they say."""
    done = doctest.testmod(sys.modules["skyward._compute"])

    assert (done.failed, done.attempted) == (0, 3)


def test_not_implemented_as_a_result_is_explained(pool: HereTarget) -> None:
    """Python takes it for a missing operator and would say so."""
    call = compute(lambda: NotImplemented)()
    with pytest.raises(TypeError, match=r"returned NotImplemented, which an operator"):
        call >> pool
