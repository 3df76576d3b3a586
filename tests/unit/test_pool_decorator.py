"""`sky.pool` as decorator, bare and called, and as context manager."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

import skyward as sky
from skyward._pool.decorator import PoolDecorator
from tests.printed import Printed


class FakePool:
    """Notes how it was made, entered and left."""

    made: list[FakePool]

    def __init__(self, provider: object = None, *, nodes: int = 1) -> None:
        self.settings = (provider, nodes)
        self.events: list[object] = []
        FakePool.made.append(self)

    def __enter__(self) -> Self:
        self.events.append("open")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.events += ["close", error]


@pytest.fixture
def pool() -> PoolDecorator[Any]:
    FakePool.made = []
    return PoolDecorator(FakePool)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decorate", "settings"),
    [
        (lambda pool: pool, (None, 1)),
        (lambda pool: pool(), (None, 1)),
        (lambda pool: pool("docker", nodes=3), ("docker", 3)),
        (lambda pool: pool(provider="docker"), ("docker", 1)),
    ],
    ids=["bare", "called", "positional", "keyword"],
)
def test_the_pool_exists_while_the_function_runs(
    pool: PoolDecorator[Any], decorate: Callable[[Any], Any], settings: tuple[object, int]
) -> None:
    """Each call opens a fresh pool with the given parameters and closes it; arguments and value pass through."""

    @decorate(pool)
    def main(a: int, *, b: int) -> list[Any]:
        """Entry."""
        return [a, b, list(FakePool.made[-1].events)]

    assert FakePool.made == []
    assert main(1, b=2) == main(1, b=2) == [1, 2, ["open"]]
    assert [made.settings for made in FakePool.made] == [settings] * 2
    assert [made.events for made in FakePool.made] == [["open", "close", None]] * 2
    assert (main.__name__, main.__doc__) == ("main", "Entry.")


def test_an_exception_passes_through_and_closes_the_pool(pool: PoolDecorator[Any]) -> None:
    """What the function raises leaves the decorated function, and the pool has seen it."""
    error = ValueError("mine")

    @pool
    def main() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        main()
    assert caught.value is error
    assert FakePool.made[0].events == ["open", "close", error]


def test_with_gives_the_pool(pool: PoolDecorator[Any]) -> None:
    """`with sky.pool(...) as p` opens a pool for the block; used again, or inside itself, it opens another."""
    scope = pool(nodes=2)

    with scope as outer, scope as inner:
        assert outer is not inner
    with scope as third:
        pass

    assert [made.settings for made in FakePool.made] == [(None, 2)] * 3
    assert all(made.events == ["open", "close", None] for made in (outer, inner, third))  # type: ignore[attr-defined]


def test_a_recursive_function_opens_a_pool_for_each_call(pool: PoolDecorator[Any]) -> None:
    """Calls of the decorated function inside itself have pools of their own."""

    @pool(nodes=1)
    def main(depth: int) -> int:
        return depth if depth == 3 else main(depth + 1)

    assert main(1) == 3
    assert len(FakePool.made) == 3


async def later() -> None: ...


def items() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [later, items])
def test_functions_that_run_later_are_refused(pool: PoolDecorator[Any], fn: Callable[[], object]) -> None:
    """A coroutine or generator would run after its pool has gone: refused at decoration, with a remedy."""
    for decorate in (pool, pool(nodes=2)):
        with pytest.raises(TypeError, match=rf"{fn.__name__} is asynchronous or a generator.*`with sky.pool"):
            decorate(fn)


def test_only_functions_are_decorated(pool: PoolDecorator[Any]) -> None:
    """`sky.pool(...)` applied to anything else says so."""
    number: Any = 3
    with pytest.raises(TypeError, match="decorates a function, found 3"):
        pool(nodes=2)(number)


def test_the_public_name_takes_the_parameters_of_compute_pool() -> None:
    """`sky.pool(...)` makes a `ComputePool` when it is entered: its mistakes are those of `ComputePool`."""
    parameters = inspect.signature(sky.ComputePool).parameters
    assert {"provider", "nodes", "concurrency", "worker", "image", "plugins"} <= set(parameters)

    with pytest.raises(sky.errors.ConfigError), sky.pool(nodes=0):
        pass


@sky.compute
@sky.integrations.torch()
def trained(data: float) -> float:
    return data


def through_another() -> object:
    return [trained(1.0) @ sky]


def plain() -> None:
    """A program without a framework."""


class Opened(Exception):
    """The pool of the tests below is about to be opened: nothing is told after this."""


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pool: object) -> None:
        raise Opened

    monkeypatch.setattr(sky.ComputePool, "__enter__", refuse)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize(
    ("main", "settings", "is_told"),
    [
        (lambda: trained(1.0) @ sky, {}, True),
        (through_another, {}, True),
        (through_another, {"image": sky.Image(pip=["numpy"])}, True),
        (plain, {}, False),
        (through_another, {"image": sky.Image(pip=["torch==2.13.0"])}, False),
        (through_another, {"image": sky.Image(base="example/torch:1")}, False),
        (through_another, {"plugins": [sky.plugins.torch()]}, False),
        (through_another, {"provider": sky.Local()}, False),
    ],
)
def test_a_framework_that_nothing_brings_is_named_before_a_node_starts(
    main: Callable[[], object], settings: dict[str, Any], is_told: bool, printed: Printed
) -> None:
    """With the plugin and the package that do; not where the image may have it."""
    with pytest.raises(Opened):
        sky.pool(**settings)(main)()

    told = printed.read().err
    assert bool(told) == is_told
    if is_told:
        assert (
            "trained() is decorated with @sky.integrations.torch, which installs nothing, and the pool's image" in told
        )
        assert "add plugins=[sky.plugins.torch()], or" in told


@pytest.mark.usefixtures("unopened")
def test_a_framework_that_this_interpreter_lacks_is_named(printed: Printed) -> None:
    """Nodes that are processes have what the program has."""

    @sky.compute
    @sky.integrations.tensorflow
    def fitted() -> None: ...

    @sky.pool(sky.Local())
    def main() -> None:
        fitted() @ sky

    with pytest.raises(Opened):
        main()
    assert "the interpreter that sky.Local() runs nodes with has no tensorflow" in printed.read().err
