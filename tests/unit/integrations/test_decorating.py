"""The decorators of frameworks: their forms, their order with `@sky.compute`, and when they do anything."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from skyward import integrations
from skyward._compute import ComputeFunction
from skyward.errors import ConfigError, PluginError
from skyward.integrations._decorators import decorated
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.runtime import environment
from skyward.wire import payload

PLACE = InstanceInfo(node=1, total_nodes=2, head_addr="127.0.0.1", head_port=0)
seen: list[InstanceInfo] = []


def prepare(info: InstanceInfo) -> None:
    seen.append(info)


def framework(fn: Callable[..., Any] | None = None, /, *, backend: str = "jax") -> Any:
    return decorated(fn, "framework", prepare, env={"BACKEND": backend}, collective=True)


@pytest.fixture(autouse=True)
def in_a_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(ENV_VAR, PLACE.to_json())
    seen.clear()
    yield
    seen.clear()


def train(x: int, *, y: int = 2) -> int:
    """Documented."""
    return x + y


@pytest.mark.parametrize(
    "make",
    [
        lambda: sky.compute(framework(train)),
        lambda: sky.compute(framework()(train)),
        lambda: sky.compute(framework(backend="jax")(train)),
        lambda: framework(sky.compute(train)),
        lambda: framework()(sky.compute(train)),
        lambda: framework(backend="jax")(sky.compute(train)),
    ],
    ids=["bare", "called", "settings", "above", "above, called", "above, settings"],
)
def test_every_form_prepares_and_then_calls(make: Callable[[], Any]) -> None:
    """Bare and called, below and above `@compute`: a compute function that declares what it needs."""
    made = make()

    assert isinstance(made, ComputeFunction)
    assert (made.name, made.__doc__, list(inspect.signature(made.fn).parameters)) == (
        "train",
        "Documented.",
        ["x", "y"],
    )
    assert made.local(1, y=3) == 4
    assert seen == [PLACE]
    assert environment.declared_env(made.fn) == {"BACKEND": "jax"}
    assert environment.is_collective(made.fn)


def test_settings_of_compute_survive_a_decorator_above_it() -> None:
    """Its limit and its retries."""
    made = framework(sky.compute(train, timeout=5, retries=2))

    assert (made.timeout, made.retries) == (5, 2)


def test_nothing_happens_outside_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs as if it were not decorated."""
    monkeypatch.delenv(ENV_VAR)

    assert framework(train)(1) == 3
    assert integrations.torch(train)(1) == 3
    assert seen == []


def test_decorators_stack() -> None:
    """With each other and with those of output; what they declare is merged."""
    made = sky.compute(integrations.torch(sky.stdout(only="head")(framework(backend="torch")(train))))

    assert environment.declared_env(made.fn) == {"BACKEND": "torch"}
    with pytest.raises(ConfigError, match="BACKEND=torch and with BACKEND=jax"):
        framework(backend="jax")(framework(backend="torch")(train))


def test_a_decorated_function_can_be_sent() -> None:
    """By value, as functions of a program are: what is unpickled prepares as well."""

    @framework
    def local(x: int) -> int:
        return x * 2

    _, data = payload.dumps_function(local)

    assert payload.loads(data)(3) == 6
    assert seen == [PLACE]


def test_a_generator_is_prepared_before_its_first_item() -> None:
    """The items are the function's own."""

    @framework
    def items() -> Iterator[int]:
        assert seen == [PLACE]
        yield from range(3)

    assert list(items()) == [0, 1, 2]


def test_a_group_of_all_is_not_made_by_one() -> None:
    """A call that runs on one rank of several says so at once instead of waiting for the others."""
    with pytest.raises(PluginError, match=r"all 2 ranks of the pool, .* Call it on all of them: f\(\.\.\.\) @ pool\."):
        integrations.torch(train)(1)


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_wrong_settings_are_refused_where_they_stand(name: str) -> None:
    """A backend that does not exist, and a setting given by position."""
    decorator = getattr(integrations, name)

    with pytest.raises(
        ConfigError, match=f"@sky.integrations.{name}: backend takes 'nccl', 'gloo' or None; found 'mpi'"
    ):
        decorator(backend="mpi")
    with pytest.raises(ConfigError, match=f"@sky.integrations.{name} decorates a function; found 'nccl'"):
        decorator("nccl")


def test_the_names_are_there_and_lazy() -> None:
    """`from skyward.integrations import ...` works for each; other names are refused as Python does it."""
    assert set(integrations.__all__) <= set(dir(integrations))
    assert integrations.torch is sky.integrations.torch
    with pytest.raises(AttributeError, match="no attribute 'pytorch'"):
        integrations.pytorch  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(integrations.torch)) is integrations.torch
