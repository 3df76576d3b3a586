"""`sky.debug`: a call in this process, to look at how it fails."""

from __future__ import annotations

import sys
from types import GeneratorType
from typing import TypeVar

from skyward._pool.terminal import missing
from skyward.errors import ConfigError
from skyward.model.call import Call
from skyward.model.instance import only_node
from skyward.wire import payload

R = TypeVar("R")


def debug(call: Call[R]) -> R:
    """Run a call in this process, as `sky.debug(train(10))`; where it fails, look at it in the debugger `pdb`.

    The function gets copies of its arguments, as a node would, and finds itself on the only node of a pool. Plugins are
    not entered, and a time limit does not count. With a terminal, `pdb` shows the frames of an exception before it is
    raised here; without one it is raised at once.

    Args:
        call: of a compute function. It need not have failed before.

    Returns:
        What the function returns; of a generator function, the list of its items.

    Raises:
        The exception that the function raises.
        ConfigError: this is not one call.
        SerializationError: the arguments could not be sent to a node either.
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
    """Show where an exception was raised in pdb, if somebody is there to look."""
    if missing() or error.__traceback__ is None:
        return
    import pdb
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()
    pdb.post_mortem(error.__traceback__.tb_next or error.__traceback__)
