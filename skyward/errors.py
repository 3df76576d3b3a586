"""Every error skyward raises, in one tree.

```
SkywardError                     what was tried, what was found, what to do
├─ ConfigError                   the caller's mistake, found before anything is created (also ValueError)
│  ├─ UnknownNameError           nothing of that name is registered (also AttributeError)
│  └─ RunNotFoundError           no run of that name is known
├─ PluginError                   a plugin cannot be loaded, pickled, or its hook failed
├─ ImageError                    an image cannot be had
│  ├─ BuildError                 a build failed: step, who asked for it, last lines
│  ├─ ImageNotFoundError         no such base image here or in its registry
│  └─ RegistryError              a registry cannot be asked, refuses, or broke off
├─ EngineError                   a Docker engine refused or failed
│  └─ EngineMissingError         no engine answers
├─ ProviderError                 machines or nodes cannot be had
│  ├─ HostLostError              a machine does not answer any more
│  └─ NodeStartError             a node ended or stayed silent before it was ready
├─ JournalError                  a journal of results cannot be read or written
├─ CheckpointError               a checkpoint cannot be kept or read
├─ WireError                     a connection broke or violated the protocol
│  ├─ AuthenticationError        the other side does not hold the node's key
│  └─ VersionError               client and node cannot understand each other
├─ PoolError                     a pool is used wrongly (also RuntimeError)
│  ├─ NoActivePoolError          `>> sky` where none is open, or several are
│  └─ PoolClosedError            the pool has ended
│     └─ BudgetSpentError        its budget is spent, and its machines have been ended
└─ TaskError                     a call could not be carried out
   ├─ SerializationError         a function, argument or result cannot be pickled or unpickled
   ├─ TaskTimeoutError           the call ran longer than its limit (also TimeoutError)
   ├─ TaskCancelledError         the call was cancelled
   ├─ TerminalError              breakpoint() or input() where there is no terminal (also EOFError)
   ├─ CollectiveHangError        ranks wait for one that has returned
   ├─ PartitionError             ranks wait because the network between their nodes fails
   ├─ WorkerLostError            the process, container or machine that ran the call is gone
   └─ RemoteError                a user exception that cannot be rebuilt here: type name, text, traceback
```

A user's own exception is re-raised as itself; its `__cause__` is a `RemoteTraceback`.
"""

from __future__ import annotations

from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


class SkywardError(Exception):
    """Base of every error raised by skyward itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (type(self), self.args, dict(vars(self)))  # a constructor may take more than the text


class ConfigError(SkywardError, ValueError):
    """A value given by the caller is wrong; nothing has been created yet."""


class UnknownNameError(ConfigError, AttributeError):
    """No plugin of that name is known; the message offers names that come close."""


class RunNotFoundError(ConfigError):
    """No run of that name is known where it was looked for, or several begin with it."""


class PluginError(SkywardError):
    """A plugin cannot be loaded or pickled, or one of its hooks failed."""


class ImageError(SkywardError):
    """An image cannot be compiled, found or built."""


class BuildError(ImageError):
    """A build failed.

    Attributes:
        step: the failing instruction, as BuildKit names it, or "" when no step was reached.
        origin: who asked for that step (a line of the user's, a plugin), or "".
        log: the last lines of the build's output.
    """

    def __init__(self, message: str, *, step: str = "", origin: str = "", log: str = "") -> None:
        super().__init__(message)
        self.step, self.origin, self.log = step, origin, log


class ImageNotFoundError(ImageError):
    """A base image is neither on the engine nor in its registry."""


class RegistryError(ImageError):
    """An image registry cannot be reached, refuses, or gave an invalid answer; also: its credentials fail.

    Attributes:
        reason: what was asked and what came back.
        remedy: what to do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason} {remedy}".rstrip())
        self.reason, self.remedy = reason, remedy


class EngineError(SkywardError):
    """A Docker engine refused a request or failed while carrying it out."""


class EngineMissingError(EngineError):
    """No Docker engine answers at the address in use."""


class ProviderError(SkywardError):
    """Machines or nodes cannot be had."""


class HostLostError(ProviderError):
    """A machine does not answer any more; what runs there may go on."""


class NodeStartError(ProviderError):
    """A node ended, or stayed silent, before it was ready; the message holds its last lines."""


class JournalError(SkywardError):
    """A journal of results cannot be opened, read or written; what it holds stays as it is."""


class CheckpointError(SkywardError):
    """A checkpoint cannot be opened, kept or read; what was committed before is still there."""


class WireError(SkywardError):
    """A connection between client and node broke or carried bytes that are not of the protocol."""


class AuthenticationError(WireError):
    """The other side of a connection does not hold the node's key."""


class VersionError(WireError):
    """Client and node run versions that cannot understand each other."""


class PoolError(SkywardError, RuntimeError):
    """A pool is used in a state that does not allow it."""


class NoActivePoolError(PoolError):
    """A call was sent to `sky`, but no pool is open, or several are and none of them was opened in this context."""


class PoolClosedError(PoolError):
    """The pool has ended, or is ending."""


class BudgetSpentError(PoolClosedError):
    """The pool's budget is spent: its machines have been ended, and its calls with them."""


class TaskError(SkywardError):
    """A call could not be carried out."""


class SerializationError(TaskError):
    """A function, an argument or a result cannot be pickled, or not be unpickled on the other side."""


class TaskTimeoutError(TaskError, TimeoutError):
    """A call ran longer than its limit and was stopped."""


class TaskCancelledError(TaskError):
    """A call was cancelled before it finished."""


class TerminalError(TaskError, EOFError):
    """A call asked for the terminal of the client's program, by breakpoint() or input(), and there is none."""


class CollectiveHangError(TaskError):
    """Ranks of a call waited for one that had returned, and would have waited for ever.

    Attributes:
        returned, waiting: the ranks that had returned, and those that waited.
    """

    def __init__(self, message: str, *, returned: tuple[int, ...], waiting: tuple[int, ...]) -> None:
        super().__init__(message)
        self.returned, self.waiting = returned, waiting


class PartitionError(TaskError):
    """Ranks of a call waited for each other because nodes did not get what others sent, while the client reached all.

    Attributes:
        lost: the directions that failed, as pairs of indexes of nodes: sender and receiver.
        still_s: seconds for which no rank had moved.
    """

    def __init__(self, message: str, *, lost: tuple[tuple[int, int], ...], still_s: float) -> None:
        super().__init__(message)
        self.lost, self.still_s = lost, still_s


class WorkerLostError(TaskError):
    """The worker that ran a call is gone.

    Attributes:
        node: index of the node in the pool.
        rank: index of the worker over all nodes.
        exit_code: exit status of the process or container, if known.
        signal: number of the signal that ended it, if one did.
        oom: whether the kernel killed it because memory ran out.
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


class RemoteTraceback(Exception):  # noqa: N818 - it is the cause of an error, never an error by itself
    """The traceback text of the other side; the `__cause__` of a user exception raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


def shortened(error: E) -> E:
    """The error without the frames between the caller and where it was raised, if they say no more than it does itself.

    That is so for skyward's own errors, for an interrupt, which finds the caller waiting, and for what a function has
    raised on a node, whose traceback is the cause. All others, such as a mistake in skyward's code, keep their frames.
    """
    if isinstance(error, SkywardError | KeyboardInterrupt) or isinstance(error.__cause__, RemoteTraceback):
        return BaseException.with_traceback(error, None)
    return error


def explained(error: BaseException) -> BaseException:
    """An error of skyward's for what Python raises when no thread can be started; any other error as it is."""
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
