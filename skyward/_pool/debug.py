"""`sky.debug`: runs a call in this process, with a debugger."""

from __future__ import annotations

import os
import sys
from types import GeneratorType
from typing import TypeVar

from skyward._pool.display import this_cell
from skyward.errors import ConfigError
from skyward.model.call import Call
from skyward.model.instance import only_node
from skyward.wire import payload

R = TypeVar("R")


def debug(call: Call[R]) -> R:
    """Run a call in this process, as `sky.debug(train(10))`; if it fails, examine it in the debugger `pdb`.

    The function gets copies of its arguments, as on a node, and runs as if on the only node of a pool. Plugins are not
    entered, and time limits do not apply. With a terminal, `pdb` opens at an exception before it is raised here;
    without one, it is raised immediately.

    Args:
        call: a call of a compute function. It need not have failed before.

    Returns:
        The function's result; for a generator function, the list of its items.

    Raises:
        The exception that the function raises.
        ConfigError: the argument is not a single call.
        SerializationError: the arguments cannot be pickled, so they could not be sent to a node either.
    """
    if not all(hasattr(call, name) for name in ("fn", "args", "kwargs")):
        raise ConfigError(f"sky.debug() takes one call, as in sky.debug(train(10)); found {call!r}.")
    name = getattr(call.fn, "__name__", "a function")
    data, buffers = payload.dumps_arguments(call.args, call.kwargs, of=name)
    args, kwargs = payload.loads(data, buffers, what=f"An argument of {name}()")
    with only_node("debug"):
        try:
            value = call.fn(*args, **kwargs)
            return list(value) if isinstance(value, GeneratorType) else value  # type: ignore[return-value]
        except Exception as error:
            _look_at(error)
            raise


def _look_at(error: Exception) -> None:
    """Open pdb where an exception was raised, if there is an interactive terminal."""
    if not _has_terminal() or error.__traceback__ is None:
        return
    import pdb
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()
    pdb.post_mortem(error.__traceback__.tb_next or error.__traceback__)


def _has_terminal() -> bool:
    """Return whether somebody can type at this process' terminal."""
    if this_cell() is not None:
        return False
    try:
        ends = sys.stdin.isatty() and sys.stdout.isatty()
        return ends and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False  # one of them is closed
