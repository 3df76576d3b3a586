"""What type checkers must make of the public API. Never run; mypy (`make typing`) and pyright check it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import assert_type

import skyward as sky
import skyward._pool.decorator
from skyward import compute, pool
from skyward._compute import Group, PendingCompute, Stream


@sky.compute
def train(epochs: int, rate: float = 0.1) -> float:
    """The bare form."""
    return epochs * rate


@sky.compute(timeout=3, retries=1)
def name(prefix: str) -> str:
    """The called form."""
    return prefix


@compute
def numbers(n: int) -> Iterator[int]:
    """A generator."""
    yield from range(n)


class Model:
    """A class with a lazy method."""

    @sky.compute
    def predict(self, x: int) -> bytes:
        """A method."""
        return bytes(x)


def calls(p: sky.ComputePool) -> None:
    """A call keeps its function's types; each operator gives its own."""
    call = train(1, rate=0.5)
    assert_type(call, PendingCompute[float])
    assert_type(call.with_timeout(3), PendingCompute[float])
    assert_type(call >> p, float)
    assert_type(call @ p, list[float])
    assert_type(call > p, Future[float])
    assert_type(train.local(1), float)
    assert_type(name("x") >> p, str)
    assert_type(Model().predict(3) >> p, bytes)


def targets() -> None:
    """The module and `sky.sky` are targets like a pool."""
    assert_type(train(1) >> sky, float)
    assert_type(train(1) @ sky.sky, list[float])
    assert_type(train(1) > sky, Future[float])


def generators(p: sky.ComputePool) -> None:
    """A generator function's call is an iterator."""
    assert_type(numbers(3) >> p, Iterator[int])


def groups(p: sky.ComputePool) -> None:
    """Groups keep the type of each call."""
    assert_type(train(1) & name("x"), Group[float, str])
    assert_type((train(1) & name("x")) >> p, tuple[float, str])
    assert_type((train(1) & name("x") & train(2)) >> sky, tuple[float, str, float])
    assert_type((train(1) & (name("x") & train(2))) >> sky, tuple[float, str, float])
    assert_type(sky.gather() >> p, tuple[()])
    assert_type(sky.gather(train(1), name("x")) >> p, tuple[float, str])
    assert_type(
        sky.gather(train(1), name("x"), train(1), name("x"), train(1), name("x")) >> p,
        tuple[float, str, float, str, float, str],
    )
    assert_type(sky.gather(*[train(i) for i in range(10)]) >> p, tuple[float, ...])
    assert_type(sky.gather(train(1), name("x")).with_timeout(1) >> p, tuple[float, str])


def streams(p: sky.ComputePool) -> None:
    """A streamed group iterates over the common type."""
    assert_type(sky.gather(train(1), train(2), stream=True), Stream[float])
    assert_type(sky.gather(train(1), train(2), return_exceptions=True) >> p, tuple[float | Exception, ...])
    assert_type(sky.gather(train(1), stream=True, return_exceptions=True), Stream[float | Exception])
    assert_type(sky.gather(*[name("x")], stream=True, ordered=False) >> p, Iterator[str])


@pool
def bare(n: int) -> str:
    """`@sky.pool` bare."""
    return str(train(n) >> sky)


@sky.pool(nodes=2, image=sky.Image(pip=["numpy"]))
def called(n: int) -> list[float]:
    """`@sky.pool(...)`."""
    return train(n) @ sky


def pools() -> None:
    """A decorated entry function keeps its type; `with` gives the pool."""
    assert_type(bare(1), str)
    assert_type(called(n=1), list[float])
    with sky.pool(sky.Local(), nodes=2) as p:
        assert_type(p, sky.ComputePool)
    with sky.pool() as q:
        assert_type(q, sky.ComputePool)
    with skyward.pool(nodes=3) as r:  # importing a submodule of the same name changes nothing
        assert_type(r, sky.ComputePool)


def decorated() -> Callable[[int], PendingCompute[str]]:
    """A compute function can be passed as what it is called like."""

    @sky.compute
    @sky.stdout(only="head")
    def quiet(n: int) -> str:
        return str(n)

    return quiet


def plugins() -> None:
    """Plugins are functions with their own parameters; one of another package is some function."""
    assert_type(sky.plugins.torch(backend="gloo", version="2.3.0"), sky.Plugin)
    assert_type(sky.plugins.jax(), sky.Plugin)
    assert_type(sky.plugins.keras("torch", seed=1), sky.Plugin)
    assert_type(sky.plugins.sklearn("1.7.0"), sky.Plugin)
    assert_type(sky.plugins.of_another_package(1, anything=2), sky.Plugin)
    assert_type(sky.plugins.torch().with_collective(), sky.Plugin)


@sky.compute
@sky.integrations.torch(backend="gloo")
def below(n: int) -> str:
    """An integration below `@sky.compute`, called."""
    return str(n)


@sky.integrations.keras("jax", seed=1)
@sky.integrations.jax
@sky.compute
def above(n: int) -> str:
    """Two above it."""
    return str(n)


def integrations(p: sky.ComputePool) -> None:
    """A decorated function keeps its signature; the pools of joblib are pools, with their settings."""
    assert_type(below(1) >> p, str)
    assert_type(above(n=1) @ p, list[str])
    with sky.integrations.JoblibPool(sky.Local(), nodes=2, concurrency=4) as q:
        assert_type(q, sky.integrations.JoblibPool)
        assert_type(below(1) >> q, str)
    with sky.integrations.ScikitLearnPool(sklearn_version="1.7.0", joblib_version="1.5.1", ttl=5) as r:
        assert_type(r, sky.integrations.ScikitLearnPool)
    with sky.integrations.joblib_backend(p) as nothing:
        assert_type(nothing, None)


def facts() -> None:
    """What functions ask for on a node."""
    assert_type(sky.instance_info(), sky.InstanceInfo | None)
    assert_type(sky.Image(pip=["numpy"]).pip_install("scipy"), sky.Image)
