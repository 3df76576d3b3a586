"""All errors raised by skyward, as one class hierarchy.

```
SkywardError                     what was tried, what was found, what to do
├─ ConfigError                   the caller's mistake, found before anything is created (also ValueError)
│  ├─ UnknownNameError           no extension of that name is known (also AttributeError)
│  └─ RunNotFoundError           no run of that name is known
├─ PluginError                   a plugin cannot be loaded or pickled, or its hook failed
├─ ImageError                    an image is not available
│  ├─ BuildError                 a build failed: step, its origin, last lines
│  ├─ ImageNotFoundError         no such base image on the engine or in its registry
│  └─ RegistryError              a registry cannot be reached, refuses a request, or answers wrongly
├─ EngineError                   a Docker engine refused a request or failed
│  └─ EngineMissingError         no engine answers
├─ ProviderError                 machines or nodes are not available
│  ├─ HostLostError              a machine no longer answers
│  └─ NodeStartError             a node ended or did not answer before it was ready
├─ JournalError                  a journal of results cannot be read or written
├─ CheckpointError               a checkpoint cannot be stored or read
├─ WireError                     a connection broke or violated the protocol
│  ├─ AuthenticationError        the other side does not hold the node's key
│  └─ VersionError               client and node run incompatible versions
├─ PoolError                     a pool cannot be used in its present state (also RuntimeError)
│  ├─ NoActivePoolError          `>> sky` while no pool is open, or several are
│  └─ PoolClosedError            the pool is closed
│     └─ BudgetSpentError        its budget is spent, and its machines have been terminated
└─ TaskError                     a call could not be carried out
   ├─ SerializationError         a function, argument or result cannot be pickled or unpickled
   ├─ TaskTimeoutError           the call ran longer than its limit (also TimeoutError)
   ├─ TaskCancelledError         the call was cancelled
   ├─ CollectiveHangError        ranks wait for one that has returned
   ├─ WorkerLostError            the process, container or machine that ran the call was lost
   └─ RemoteError                a user exception that cannot be rebuilt here: type name, text, traceback
```

Exceptions of user code are re-raised unchanged, with a `RemoteTraceback` as `__cause__`.
"""

from __future__ import annotations

from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


class SkywardError(Exception):
    """Base class of all errors raised by skyward."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (type(self), self.args, dict(vars(self)))  # a constructor may take more than the message


class ConfigError(SkywardError, ValueError):
    """A value passed by the caller is invalid; nothing has been created yet."""


class UnknownNameError(ConfigError, AttributeError):
    """No plugin or other extension of that name is known; the message suggests similar names."""


class RunNotFoundError(ConfigError):
    """No run of that name was found, or several begin with it."""


class PluginError(SkywardError):
    """A plugin cannot be loaded or pickled, or one of its hooks failed."""


class ImageError(SkywardError):
    """An image cannot be compiled, found or built."""


class BuildError(ImageError):
    """A build failed.

    Attributes:
        step: the failing instruction, as named by BuildKit, or "" if no step was reached.
        origin: where that step comes from (a line of user code, a plugin), or "".
        log: the last lines of the build's output.
    """

    def __init__(self, message: str, *, step: str = "", origin: str = "", log: str = "") -> None:
        super().__init__(message)
        self.step, self.origin, self.log = step, origin, log


class ImageNotFoundError(ImageError):
    """A base image is neither on the engine nor in its registry."""


class RegistryError(ImageError):
    """An image registry cannot be reached, refuses a request or gives an invalid answer, or its credentials fail.

    Attributes:
        reason: the request and its outcome.
        remedy: what to do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason} {remedy}".rstrip())
        self.reason, self.remedy = reason, remedy


class EngineError(SkywardError):
    """A Docker engine refused a request or failed to carry it out."""


class EngineMissingError(EngineError):
    """No Docker engine answers at the address in use."""


class ProviderError(SkywardError):
    """Machines or nodes are not available."""


class HostLostError(ProviderError):
    """A machine no longer answers; its processes may still be running."""


class NodeStartError(ProviderError):
    """A node ended, or did not answer, before it was ready; the message contains its last lines."""


class JournalError(SkywardError):
    """A journal of results cannot be opened, read or written; its contents are unchanged."""


class CheckpointError(SkywardError):
    """A checkpoint cannot be opened, stored or read; earlier commits are still there."""


class WireError(SkywardError):
    """A connection between client and node broke or carried bytes that violate the protocol."""


class AuthenticationError(WireError):
    """The other side of a connection does not hold the node's key."""


class VersionError(WireError):
    """Client and node run incompatible versions."""


class PoolError(SkywardError, RuntimeError):
    """A pool cannot be used in its present state."""


class NoActivePoolError(PoolError):
    """A call was sent to `sky`, but no pool is open, or several are and none of them was opened in this context."""


class PoolClosedError(PoolError):
    """The pool is closed, or being closed."""


class BudgetSpentError(PoolClosedError):
    """The pool's budget is spent: its machines have been terminated, and its calls with them."""


class TaskError(SkywardError):
    """A call could not be carried out."""


class SerializationError(TaskError):
    """A function, an argument or a result cannot be pickled, or cannot be unpickled on the other side."""


class TaskTimeoutError(TaskError, TimeoutError):
    """A call ran longer than its limit and was stopped."""


class TaskCancelledError(TaskError):
    """A call was cancelled before it finished."""


class CollectiveHangError(TaskError):
    """Ranks of a call waited for one that had returned, and would have waited for ever.

    Attributes:
        returned, waiting: the ranks that had returned, and those that waited.
    """

    def __init__(self, message: str, *, returned: tuple[int, ...], waiting: tuple[int, ...]) -> None:
        super().__init__(message)
        self.returned, self.waiting = returned, waiting


class WorkerLostError(TaskError):
    """The worker that ran a call was lost.

    Attributes:
        node: index of the node in the pool.
        rank: index of the worker over all nodes.
        exit_code: exit status of the process or container, if known.
        signal: number of the signal that ended it, if one did.
        oom: whether the kernel killed it because it ran out of memory.
        log: its last output lines.
    """

    def __init__(
        self,
        message: str,
        *,
        node: int,
        rank: int,
        exit_code: int | None = None,
        signal: int | None = None,
        oom: bool = False,
        log: str = "",
    ) -> None:
        super().__init__(message)
        self.node, self.rank = node, rank
        self.exit_code, self.signal, self.oom, self.log = exit_code, signal, oom, log


class RemoteError(TaskError):
    """A user exception that cannot be rebuilt on this side.

    Attributes:
        type_name: qualified name of its class on the node.
        traceback: its formatted traceback.
    """

    def __init__(self, message: str, *, type_name: str, traceback: str) -> None:
        super().__init__(message)
        self.type_name, self.traceback = type_name, traceback


class RemoteTraceback(Exception):  # noqa: N818 - only the cause of an error, never raised
    """The traceback text from a node; the `__cause__` of a user exception re-raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


def shortened(error: E) -> E:
    """Remove the frames between the caller and the `raise` from an error, if they add nothing to its message.

    This applies to skyward's own errors, to an interrupt while the caller waits, and to exceptions of functions on
    nodes, whose traceback is the cause. All others, such as bugs in skyward, keep their frames.
    """
    if isinstance(error, SkywardError | KeyboardInterrupt) or isinstance(error.__cause__, RemoteTraceback):
        return BaseException.with_traceback(error, None)
    return error


def explained(error: BaseException) -> BaseException:
    """Return a PoolError in place of Python's error if no thread can be started; return other errors unchanged."""
    if type(error) is not RuntimeError or not str(error).startswith("can't start new thread"):
        return error
    import threading

    made = PoolError(
        f"No more threads can be started beside the {threading.active_count()} that this process has ({error}). Raise "
        "the limit of its user (ulimit -u) or of its container (docker run --pids-limit), or ask for fewer nodes, or "
        "fewer calls at once (concurrency=)."
    )
    made.__cause__ = error
    return made


def _copied(cls: type[SkywardError], args: tuple[Any, ...], attributes: dict[str, Any]) -> SkywardError:
    error = cls.__new__(cls, *args)
    vars(error).update(attributes)
    return error
