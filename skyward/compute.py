"""The expression language: `@compute` makes calls lazy, operators send them to a pool.

    p >> target    run once, on one node          p @ target    run once on every node
    p > target     run in the background          (p & q) >> target, gather(p, q) >> target    run all at once

Standard library only: the modules of user code import this inside containers too. What a target does with a call is
the pool's affair.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MethodType, ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    overload,
)

from skyward.errors import ConfigError
from skyward.model.call import Target, active_target

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
Ts = TypeVarTuple("Ts")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")

_METHODS = ("run", "broadcast", "run_async", "run_parallel", "run_stream")
_SHAPES = 64  # remembered argument shapes of a function; one with *args or **kwargs has no end of them


class ActivePool:
    """The type of `sky.sky`: as a target it means the active pool, like the module `skyward` itself.

    That is the pool opened last in this context (thread or asyncio task) and still open; in a context that has opened
    none, the only open pool.
    """

    def __repr__(self) -> str:
        return "skyward.sky"

    def __reduce__(self) -> str:
        return "sky"


sky: Final = ActivePool()
Destination = Target | ModuleType | ActivePool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCompute(Generic[R_co]):
    """A call that has not been run.

    Attributes:
        fn: the undecorated function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        timeout: seconds the call may run, counted from its start on the node; None for no limit.
        retries: how often to run it again when its worker is lost; an exception of its own is never retried.
    """

    fn: Callable[..., R_co]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    retries: int = 0

    def with_timeout(self, seconds: float | None) -> Self:
        """The same call with another limit on its run, in seconds; None for no limit."""
        return replace(self, timeout=_checked_timeout(seconds))

    def __rshift__(self, target: Destination) -> R_co:
        """Run once, on one node; what the function returns or raises (an iterator for a generator function)."""
        result = _resolve(target, self, ">>").run(self)
        if result is NotImplemented:
            raise TypeError(
                f"{self!r} returned NotImplemented, which an operator of Python cannot give: it stands for an operator "
                "that does not exist. Use `pool.run(call)`, or return something else."
            )
        return result

    def __matmul__(self, target: Destination) -> list[R_co]:
        """Run once on every node; the index of the list is the node."""
        return _resolve(target, self, "@").broadcast(self)

    def __gt__(self, target: Destination) -> Future[R_co]:
        """Run once, on one node, in the background."""
        return _resolve(target, self, ">").run_async(self)

    @overload
    def __and__(self, other: PendingCompute[S]) -> Group[R_co, S]: ...
    @overload
    def __and__(self, other: Group[*Ts]) -> Group[R_co, *Ts]: ...
    def __and__(self, other: Any) -> Any:
        """A group of calls to be run at once: `(p & q) >> pool`."""
        return Group((self, *_operands(other)))

    if not TYPE_CHECKING:  # type checkers see no such operator and refuse it on their own

        def __rand__(self, other: object) -> NoReturn:
            _operands(other)

    def __repr__(self) -> str:
        texts = [reprlib.repr(arg) for arg in self.args] + [f"{k}={reprlib.repr(v)}" for k, v in self.kwargs.items()]
        return f"{_name(self.fn)}({', '.join(texts)})"


def _refuse(operator: str, remedy: str) -> Callable[[Any, object], NoReturn]:
    def method(self: object, _other: object) -> NoReturn:
        raise TypeError(f"`{operator}` takes one call, found the group {self!r}. {remedy}")

    return method


_refuse_matmul = _refuse("@", "To run each call on every node write `[call @ pool for call in calls]`.")
_refuse_gt = _refuse(">", "To run the calls in the background write `[call > pool for call in calls]`.")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Group(Generic[*Ts]):
    """Calls to be run at once; `group >> pool` is the tuple of their results, in the order of the calls."""

    calls: tuple[PendingCompute[Any], ...]

    def with_timeout(self, seconds: float | None) -> Self:
        """The same group with another limit on the run of each call, in seconds; None for no limit."""
        return replace(self, calls=tuple(call.with_timeout(seconds) for call in self.calls))

    def __rshift__(self, target: Destination) -> tuple[*Ts]:
        """Run all at once, on as many nodes as there are; the first call that fails raises."""
        pool = _resolve(target, self, ">>")
        results: Any = pool.run_parallel(self.calls) if self.calls else ()
        return results  # type: ignore[no-any-return]

    @overload
    def __and__(self, other: PendingCompute[S]) -> Group[*Ts, S]: ...
    @overload
    def __and__(self, other: Group[*tuple[Any, ...]]) -> Group[*tuple[Any, ...]]: ...
    def __and__(self, other: Any) -> Any:
        """The group with further calls."""
        return Group((*self.calls, *_operands(other)))

    if not TYPE_CHECKING:  # see PendingCompute
        __rand__ = PendingCompute.__rand__
        __matmul__, __gt__ = _refuse_matmul, _refuse_gt

    def __repr__(self) -> str:
        return _group_text(self.calls, " & ")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream(Generic[R_co]):
    """Calls to be run at once; `stream >> pool` iterates over their results as they arrive.

    Attributes:
        calls: the calls.
        ordered: whether results come in the order of the calls, or whichever is ready first.
    """

    calls: tuple[PendingCompute[R_co], ...]
    ordered: bool = True

    def with_timeout(self, seconds: float | None) -> Self:
        """The same calls with another limit on the run of each, in seconds; None for no limit."""
        return replace(self, calls=tuple(call.with_timeout(seconds) for call in self.calls))

    def __rshift__(self, target: Destination) -> Iterator[R_co]:
        """Run all at once; an iterator over the results, which raises where a call failed."""
        pool = _resolve(target, self, ">>")
        return pool.run_stream(self.calls, ordered=self.ordered) if self.calls else iter(())

    if not TYPE_CHECKING:  # see PendingCompute
        __matmul__, __gt__ = _refuse_matmul, _refuse_gt

    def __repr__(self) -> str:
        return f"gather({_group_text(self.calls, ', ')}, stream=True)"


class ComputeFunction(Generic[P, R]):
    """A function whose calls are lazy; made by `@compute`.

    Attributes:
        fn: the undecorated function; `local` is another name for it, to run it in this process.
        name: its name.
        timeout: seconds each of its calls may run; None for no limit.
        retries: how often a call is run again when its worker is lost.
    """

    def __init__(self, fn: Callable[P, R], *, timeout: float | None = None, retries: int = 0) -> None:
        functools.update_wrapper(self, fn)
        self.fn = self.local = _checked_function(fn)
        self.name = _name(fn)
        self.timeout = _checked_timeout(timeout)
        self.retries = _checked_retries(retries)
        self._shapes: set[tuple[int | str, ...]] = set()

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> PendingCompute[R]:
        """The call, not run.

        Raises:
            TypeError: the arguments do not fit the function.
        """
        # whether arguments fit depends on their number and names alone; binding costs ten times as much as this
        if (len(args), *kwargs) not in self._shapes:
            self._bind(args, kwargs)
        return PendingCompute(self.fn, args, kwargs, self.timeout, self.retries)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}(): {error}") from None
        if len(self._shapes) < _SHAPES:
            self._shapes.add((len(args), *kwargs))

    @functools.cached_property
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.fn)
        except ValueError:  # a function written in C that does not say
            return None

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(
        self: ComputeFunction[Concatenate[S, Q], R], instance: S, owner: type
    ) -> Callable[Q, PendingCompute[R]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        """Bind a method's `self`, which is sent with the arguments."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compute function {self.name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by reference where the name leads here, by value in `__main__`."""
        module, path = self.__module__, getattr(self, "__qualname__", "")
        if module not in ("__main__", "__mp_main__") and _attribute(sys.modules.get(module), path) is self:
            return path
        return _rebuild, (self.fn, self.timeout, self.retries)


@overload
def compute(fn: Callable[P, R], /, *, timeout: float | None = None, retries: int = 0) -> ComputeFunction[P, R]: ...
@overload
def compute(
    fn: None = None, /, *, timeout: float | None = None, retries: int = 0
) -> Callable[[Callable[P, R]], ComputeFunction[P, R]]: ...
def compute(fn: Any = None, /, *, timeout: float | None = None, retries: int = 0) -> Any:
    """Make the calls of a function lazy, to be sent to a pool by an operator. The outermost decorator.

    Args:
        fn: the function, when used bare.
        timeout: seconds each call may run, counted from its start on the node; None for no limit.
        retries: how often to run a call again when its worker is lost; an exception of its own is never retried.

    Raises:
        ConfigError: a timeout that is not positive, negative retries.
        TypeError: what is decorated is not an ordinary or generator function.

    Example:
        >>> @compute
        ... def double(x: int) -> int:
        ...     return 2 * x
        >>> double(21)
        double(21)
        >>> double.local(21)
        42
    """
    if fn is None:
        return functools.partial(ComputeFunction, timeout=timeout, retries=retries)
    return ComputeFunction(fn, timeout=timeout, retries=retries)


# fmt: off
@overload
def gather(*, stream: Literal[False] = ..., ordered: bool = ...) -> Group[()]: ...
@overload
def gather(a: PendingCompute[A], /, *, stream: Literal[False] = ..., ordered: bool = ...) -> Group[A]: ...
@overload
def gather(
    a: PendingCompute[A], b: PendingCompute[B], /, *, stream: Literal[False] = ..., ordered: bool = ...
) -> Group[A, B]: ...
@overload
def gather(
    a: PendingCompute[A], b: PendingCompute[B], c: PendingCompute[C], /,
    *, stream: Literal[False] = ..., ordered: bool = ...
) -> Group[A, B, C]: ...
@overload
def gather(
    a: PendingCompute[A], b: PendingCompute[B], c: PendingCompute[C], d: PendingCompute[D], /,
    *, stream: Literal[False] = ..., ordered: bool = ...
) -> Group[A, B, C, D]: ...
@overload
def gather(
    a: PendingCompute[A], b: PendingCompute[B], c: PendingCompute[C], d: PendingCompute[D], e: PendingCompute[E], /,
    *, stream: Literal[False] = ..., ordered: bool = ...
) -> Group[A, B, C, D, E]: ...
@overload
def gather(
    a: PendingCompute[A], b: PendingCompute[B], c: PendingCompute[C], d: PendingCompute[D], e: PendingCompute[E],
    f: PendingCompute[F], /, *, stream: Literal[False] = ..., ordered: bool = ...
) -> Group[A, B, C, D, E, F]: ...
@overload
def gather(*calls: PendingCompute[R], stream: Literal[False] = ..., ordered: bool = ...) -> Group[*tuple[R, ...]]: ...
@overload
def gather(*calls: PendingCompute[R], stream: Literal[True], ordered: bool = ...) -> Stream[R]: ...
# fmt: on
def gather(*calls: Any, stream: bool = False, ordered: bool = True) -> Any:
    """Group calls that are to run at once; `gather(p, q) >> pool` is the same as `(p & q) >> pool`.

    Args:
        calls: the calls; none are fine, too.
        stream: give an iterator over the results as they arrive instead of a tuple.
        ordered: while streaming, keep the order of the calls; otherwise whichever is ready comes first.

    Raises:
        TypeError: an argument is not a call.
    """
    for position, call in enumerate(calls, 1):
        if not isinstance(call, PendingCompute):
            remedy = "unpack it: gather(*calls)" if isinstance(call, list | tuple) else "write gather(f(1), f(2))"
            raise TypeError(
                f"gather() takes calls of compute functions; argument {position} is {_found(call)}: {remedy}."
            )
    return Stream(calls, ordered) if stream else Group(calls)


def _resolve(target: Any, call: object, operator: str) -> Target:
    """The pool meant by the right-hand side of an operator."""
    if target is sky or (isinstance(target, ModuleType) and target.__name__ == "skyward"):
        return active_target(
            f"`{call!r} {operator} sky`",
            "Open one around it with `with sky.ComputePool(...):`, or decorate the function it stands in with "
            "`@sky.pool(...)`.",
        )
    if isinstance(target, type) or not all(hasattr(target, name) for name in _METHODS):
        raise TypeError(
            f"`{call!r} {operator} ...` needs a pool, `sky` or `sky.sky` on its right, found {_found(target)}."
        )
    pool: Target = target
    return pool


def _operands(other: object) -> tuple[PendingCompute[Any], ...]:
    if isinstance(other, PendingCompute):
        return (other,)
    if isinstance(other, Group):
        return other.calls
    raise TypeError(
        f"`&` joins calls of compute functions, found {_found(other)}. `>>` and `@` bind tighter than `&`: "
        "write `(a & b) >> pool` with parentheses."
    )


def _found(value: object) -> str:
    if isinstance(value, ComputeFunction):
        return f"the function {value.name}, which was not called: write {value.name}(...)"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{reprlib.repr(value)} of type {type(value).__name__}"


def _checked_function(fn: Callable[P, R]) -> Callable[P, R]:
    if isinstance(fn, ComputeFunction):
        raise TypeError(f"{fn.name} is a compute function already; decorate it once.")
    if not callable(fn):
        raise TypeError(f"@compute decorates a function, found {_found(fn)}.")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"@compute decorates ordinary and generator functions; {_name(fn)} is asynchronous. "
            "Write an ordinary function that calls `asyncio.run(...)`."
        )
    return fn


def _checked_timeout(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        raise ConfigError(f"A timeout is a number of seconds above 0, or None for no limit; found {seconds!r}.")
    return seconds


def _checked_retries(retries: int) -> int:
    if retries < 0:
        raise ConfigError(f"retries is how often a call is run again, at least 0; found {retries!r}.")
    return retries


def _group_text(calls: tuple[PendingCompute[Any], ...], joint: str) -> str:
    shown = [repr(call) for call in calls[:3]] + ["..."] * (len(calls) > 3)
    return f"({joint.join(shown)})"


def _name(fn: object) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _attribute(start: object, path: str) -> object:
    for name in path.split("."):
        start = getattr(start, name, None)
    return start


def _rebuild(fn: Callable[P, R], timeout: float | None, retries: int) -> ComputeFunction[P, R]:
    return ComputeFunction(fn, timeout=timeout, retries=retries)
