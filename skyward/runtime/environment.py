"""Requirements of a function on the process that runs it: variables, preparation, contexts, and grouped ranks.

Integrations declare them on the client as attributes of the function, which `functools.wraps` copies to its wrappers.
The pool sends the variables with the pickled function. A worker sets them before it unpickles the function, so that
modules which read them at import, including those imported by the user's file, see them. It prepares before it
unpickles the arguments of a call, which may be models and arrays of the framework.

A context entered by a decorator at the first call of a function (a process group, say) is entered once per process, is
still open at the next call, and is exited when the worker ends.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextvars import Context, ContextVar, copy_context
from types import MappingProxyType
from typing import Any, TypeVar, cast

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Prepare = Callable[[InstanceInfo], object]
_ENV, _COLLECTIVE, _PREPARE = "__skyward_env__", "__skyward_collective__", "__skyward_prepare__"
_ALL = (_ENV, _COLLECTIVE, _PREPARE)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_everywhere: ContextVar[bool] = ContextVar("skyward_everywhere", default=False)
_at_end: ContextVar[tuple[Callable[[], object], ...]] = ContextVar("skyward_at_end", default=())
_lock = threading.RLock()  # reentrant, as a context may enter another one
_contexts = ExitStack()
_values: dict[Hashable, object] = {}


# declared on the client -----------------------------------------------------------------------------------------------


def declare(
    fn: F,
    env: Mapping[str, str] = _NOTHING,
    *,
    collective: bool = False,
    prepare: Prepare | None = None,
) -> F:
    """Declare the requirements of a function, in addition to those of a function inside it.

    Args:
        fn: the function; it is modified and returned.
        env: variables to be set in the worker before the function is loaded there.
        collective: whether its ranks form one group when it is called on every node, so that the loss of one ends all.
        prepare: called in the worker before each call, before its arguments are loaded and before functions inside this
            one prepare. It may be called again in the same call.

    Raises:
        ConfigError: the function already requires another value of the same variable.
    """
    known = declared_env(fn)
    for name, value in env.items():
        if known.get(name, value) != value:
            called = getattr(fn, "__name__", repr(fn))
            raise ConfigError(f"{called}() must run with {name}={known[name]} and with {name}={value}; choose one.")
    if env:
        setattr(fn, _ENV, {**known, **env})
    if collective:
        setattr(fn, _COLLECTIVE, True)
    if prepare is not None:
        setattr(fn, _PREPARE, (prepare, *getattr(fn, _PREPARE, ())))
    return fn


def declared_env(fn: Callable[..., Any]) -> Mapping[str, str]:
    """Return the variables that a function requires."""
    env: Mapping[str, str] = getattr(fn, _ENV, _NOTHING)
    return env


def is_collective(fn: Callable[..., Any]) -> bool:
    """Return whether the ranks of a function form one group when it is called on every node."""
    return getattr(fn, _COLLECTIVE, False) is True


def same(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls this one, to hold declarations that this one does not have."""

    @functools.wraps(fn)
    def around(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return around


def carry(fn: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function's wrapper with the function's declarations, even if it was made without `functools.wraps`."""
    lost = {name: getattr(fn, name) for name in _ALL if hasattr(fn, name) and not hasattr(wrapper, name)}
    if lost:
        wrapper = same(wrapper)
        vars(wrapper).update(lost)
    return wrapper


# in the worker --------------------------------------------------------------------------------------------------------


def conflict(env: Mapping[str, str]) -> str | None:
    """Return why this process can no longer set the variables that a function requires; None if it can.

    Keras reads the name of its backend when it is imported.
    """
    wanted, keras = env.get("KERAS_BACKEND"), sys.modules.get("keras")
    config = getattr(keras, "config", None)  # None while keras itself is being imported
    if wanted is None or config is None or config.backend() == wanted:
        return None
    return f"keras is loaded with KERAS_BACKEND={config.backend()}, and it reads KERAS_BACKEND only when it is imported"


def apply(env: Mapping[str, str]) -> None:
    """Set the variables in this process."""
    os.environ.update(env)


def prepare(fn: Callable[..., Any]) -> None:
    """Run the preparations declared by the function in this process."""
    declared: tuple[Prepare, ...] = getattr(fn, _PREPARE, ())
    if declared and (place := InstanceInfo.current()) is not None:
        for each in declared:
            each(place)


def begin_call(*, everywhere: bool) -> None:
    """Record whether the call that begins in this thread was made with `@`. For the runner, as is `end_call`."""
    _everywhere.set(everywhere)


def end_call() -> None:
    """Record that the call and its result are finished, and run the `at_end` actions in reverse order."""
    _everywhere.set(False)
    if restores := _at_end.get():
        for restore in reversed(restores):
            restore()
        _at_end.set(())


def hand_over() -> Context:
    """Return a context in which the current call goes on when its thread has gone on to other calls."""
    context = copy_context()
    _everywhere.set(False)
    _at_end.set(())
    return context


def at_end(restore: Callable[[], object]) -> None:
    """Register an action for the end of the current call, unless it is registered already. It must not raise."""
    if restore not in _at_end.get():
        _at_end.set((*_at_end.get(), restore))


def on_every_rank() -> bool:
    """Return whether the current call runs on all ranks of the pool; False outside calls."""
    return _everywhere.get()


def require_every_rank(name: str) -> None:
    """Check that a call runs on all ranks, which would otherwise wait for each other.

    Args:
        name: name of the framework that connects them, for the error.

    Raises:
        PluginError: it runs on only one of several ranks.
    """
    place = InstanceInfo.current()
    if place is not None and place.total_workers > 1 and not on_every_rank():
        raise PluginError(
            f"{name}: this call runs on rank {place.global_worker_index} only, of {place.total_workers} that form one "
            "group and wait for each other. Call the function with @ to run it on all of them."
        )


def enter_context(key: Hashable, make: Callable[[], AbstractContextManager[T]]) -> T:
    """Enter a context once per process; other threads wait until it has been entered.

    Args:
        key: identifies the context.
        make: creates the context manager; not called if the context is already open.

    Returns:
        The value that the context manager returned when it was entered.

    Raises:
        Any exception from entering it: it is then not open, and the next call tries again.
    """
    with _lock:
        if key not in _values:
            _values[key] = _contexts.enter_context(make())
        return cast(T, _values[key])


def leave_contexts() -> None:
    """Exit all contexts in reverse order; called by the runner when the worker ends.

    Raises:
        The error of a context that failed to exit, after all have been exited.
    """
    with _lock:
        _values.clear()
        _contexts.close()
