"""Requirements of a function on the process that runs it: variables, preparation, contexts, and whether its ranks form
one group.

Integrations declare it on the client, as attributes of the function, which `functools.wraps` passes on to whatever is
wrapped around it. The pool sends the variables beside the pickled function. A worker sets them before it unpickles the
function, so that a module which reads them when it is imported sees them, also one that the user's file imports at its
top; and it prepares before it unpickles the arguments of a call, which may be models and arrays of the framework.

What a decorator sets up at the first call of a function (a process group, say) is entered once per process, is there at
the next call, and is left when the worker ends.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar, cast

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Prepare = Callable[[InstanceInfo], object]
_ENV, _COLLECTIVE, _PREPARE = "__skyward_env__", "__skyward_collective__", "__skyward_prepare__"
_FRAMEWORKS = "__skyward_frameworks__"
_ALL = (_ENV, _COLLECTIVE, _PREPARE, _FRAMEWORKS)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_everywhere: ContextVar[bool] = ContextVar("skyward_everywhere", default=False)
_at_end: ContextVar[tuple[Callable[[], object], ...]] = ContextVar("skyward_at_end", default=())
_lock = threading.RLock()  # a context may enter another one
_contexts = ExitStack()
_values: dict[Hashable, object] = {}


# declared on the client -----------------------------------------------------------------------------------------------


def declare(
    fn: F,
    env: Mapping[str, str] = _NOTHING,
    *,
    collective: bool = False,
    prepare: Prepare | None = None,
    framework: str = "",
) -> F:
    """Note on a function what it asks for, beside what a function inside it has asked for.

    Args:
        fn: the function; it is changed and returned.
        env: variables that are set in the worker before the function is loaded there.
        collective: its ranks form one group when it is called on every node, so that the loss of one ends the others.
        prepare: called in the worker before each call, its arguments and what functions inside this one have declared.
            It may be called again in the same call.
        framework: the package that it prepares for.

    Raises:
        ConfigError: the function asks for another value of the same variable already.
    """
    known = declared_env(fn)
    for name, value in env.items():
        if known.get(name, value) != value:
            called = getattr(fn, "__name__", repr(fn))
            raise ConfigError(f"{called}() is to run with {name}={known[name]} and with {name}={value}; choose one.")
    if env:
        setattr(fn, _ENV, {**known, **env})
    if collective:
        setattr(fn, _COLLECTIVE, True)
    if prepare is not None:
        setattr(fn, _PREPARE, (prepare, *getattr(fn, _PREPARE, ())))
    if framework:
        setattr(fn, _FRAMEWORKS, (framework, *declared_frameworks(fn)))
    return fn


def declared_env(fn: Callable[..., Any]) -> Mapping[str, str]:
    """The variables that a function asks for."""
    env: Mapping[str, str] = getattr(fn, _ENV, _NOTHING)
    return env


def declared_frameworks(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The packages that a function is decorated for."""
    frameworks: tuple[str, ...] = getattr(fn, _FRAMEWORKS, ())
    return frameworks


def is_collective(fn: Callable[..., Any]) -> bool:
    """Whether the ranks of a function form one group when it is called on every node."""
    return getattr(fn, _COLLECTIVE, False) is True


def same(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what another does, to declare for it what the other has not."""

    @functools.wraps(fn)
    def around(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return around


def carry(fn: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """What was wrapped around a function, asking for the same even if its author did not use `functools.wraps`."""
    lost = {name: getattr(fn, name) for name in _ALL if hasattr(fn, name) and not hasattr(wrapper, name)}
    if lost:
        wrapper = same(wrapper)
        vars(wrapper).update(lost)
    return wrapper


# in the worker --------------------------------------------------------------------------------------------------------


def conflict(env: Mapping[str, str]) -> str | None:
    """Why this process cannot give a function the variables it asks for any more, None where it can.

    A variable that a module reads when it is imported comes too late once the module is there.
    """
    for name, value in env.items():
        module_name, in_use = _READ_AT_IMPORT.get(name, ("", _nothing))
        module = sys.modules.get(module_name)
        if module is not None and (found := in_use(module)) not in (value, None):
            return f"{module_name} is loaded with {name}={found}, and it reads {name} only when it is imported"
    return None


def _keras_backend(keras: ModuleType) -> str | None:
    config = getattr(keras, "config", None)  # None while keras itself is being imported
    return None if config is None else str(config.backend())


def _nothing(_module: ModuleType) -> str | None:
    return None


# variable -> the module that reads it when it is imported, and what tells the value that module has read
_READ_AT_IMPORT: Mapping[str, tuple[str, Callable[[ModuleType], str | None]]] = {
    "KERAS_BACKEND": ("keras", _keras_backend),
}


def apply(env: Mapping[str, str]) -> None:
    """Set the variables in this process."""
    os.environ.update(env)


def prepare(fn: Callable[..., Any]) -> None:
    """Make this process ready for a call of the function, as it has declared."""
    declared: tuple[Prepare, ...] = getattr(fn, _PREPARE, ())
    if declared and (place := InstanceInfo.current()) is not None:
        for each in declared:
            each(place)


def begin_call(*, everywhere: bool) -> None:
    """Say of the call that begins in this thread whether it was made with `@`. For the runner, as `end_call` is."""
    _everywhere.set(everywhere)


def end_call() -> None:
    """Say that the call has ended, its result included: what was to be done then is done, the last first."""
    _everywhere.set(False)
    if restores := _at_end.get():
        for restore in reversed(restores):
            restore()
        _at_end.set(())


def at_end(restore: Callable[[], object]) -> None:
    """Have something done at the end of the call that runs here, unless it is to be done already. It must not fail."""
    if restore not in _at_end.get():
        _at_end.set((*_at_end.get(), restore))


def on_every_rank() -> bool:
    """Whether the call that runs here runs on all ranks of the pool; False outside calls."""
    return _everywhere.get()


def require_every_rank(name: str) -> None:
    """Refuse a call that runs on one rank only, of several that would wait for each other in it.

    Args:
        name: what the error calls the framework that connects them.

    Raises:
        PluginError: as said.
    """
    place = InstanceInfo.current()
    if place is not None and place.total_workers > 1 and not on_every_rank():
        raise PluginError(
            f"{name}: this call runs on rank {place.global_worker_index} only, of {place.total_workers} that form one "
            "group and wait for each other. Call the function with @ to run it on all of them."
        )


def enter_context(key: Hashable, make: Callable[[], AbstractContextManager[T]]) -> T:
    """Enter a context unless that has been done in this process; other threads wait until it has.

    Args:
        key: what the context is known by.
        make: makes the context manager; not called when the context is open already.

    Returns:
        What the context manager gave when it was entered.

    Raises:
        Whatever entering it raises: it is then not open, and the next call tries again.
    """
    with _lock:
        if key not in _values:
            _values[key] = _contexts.enter_context(make())
        return cast(T, _values[key])


def leave_contexts() -> None:
    """Leave all contexts, the last entered first; called by the runner when the worker ends.

    Raises:
        The first error of a context that failed to leave; all have been left.
    """
    with _lock:
        _values.clear()
        _contexts.close()
