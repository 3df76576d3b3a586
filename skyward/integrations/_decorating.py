"""What the decorators of all frameworks share: their forms, and when what they set up runs.

Each works bare and called, below `@sky.compute` and above it, and does nothing outside a pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from skyward.compute import ComputeFunction
from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo
from skyward.runtime import environment

Prepare = Callable[[InstanceInfo], object]
Decorator = Callable[[Callable[..., Any]], Any]

_NOTHING: Mapping[str, str] = {}


def decorated(
    fn: Callable[..., Any] | None,
    name: str,
    prepare: Prepare,
    *,
    env: Mapping[str, str] = _NOTHING,
    collective: bool = False,
) -> Any:
    """The decorated function, or the decorator itself where it was called with settings only.

    Args:
        fn: what the decorator was applied to, None in its called form.
        name: what errors call the decorator.
        prepare: called on the worker before each call of the function and its arguments, with the worker's place. It
            can be pickled, and does once per process what may be done once (`skyward.runtime.lasting`).
        env: variables that are set in the worker before the function is loaded there.
        collective: whether the ranks of the function form one group.

    Raises:
        ConfigError: what is decorated is no function.
    """
    if fn is None:
        return functools.partial(decorated, name=name, prepare=prepare, env=env, collective=collective)
    if isinstance(fn, ComputeFunction):  # above @sky.compute: what it wraps is decorated in its place
        inner = _around(fn.fn, prepare, env, collective)
        return ComputeFunction(inner, timeout=fn.timeout, retries=fn.retries)
    if not callable(fn):
        raise ConfigError(
            f"@sky.integrations.{name} decorates a function; found {fn!r}. Settings are given by name, as in "
            f"@sky.integrations.{name}(...)."
        )
    return _around(fn, prepare, env, collective)


def _around(fn: Callable[..., Any], prepare: Prepare, env: Mapping[str, str], collective: bool) -> Callable[..., Any]:
    @functools.wraps(fn)  # travels by value from __main__: it may name functions of this module, but no state of it
    def around(*args: Any, **kwargs: Any) -> Any:
        prepared(prepare)
        return fn(*args, **kwargs)

    return environment.declare(around, env, collective=collective, prepare=prepare)


def prepared(prepare: Prepare) -> None:
    """Set up what the function needs, if it runs in a pool."""
    info = InstanceInfo.current()
    if info is not None:
        prepare(info)
