"""The expression language: `@compute` makes calls lazy; operators send them to a pool.

    p >> target    run once, on one node          p @ target    run once on every node
    p > target     run in the background          (p & q) >> target, gather(p, q) >> target    run all at once

Standard library only, since modules of user code import this inside containers too.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import MappingProxyType, MethodType, ModuleType
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

from skyward.errors import shortened
from skyward.model.call import Target, checked_retries, checked_timeout
from skyward.model.parameters import suggesting
from skyward.runtime.active_pool import ActivePool, active_target, sky
from skyward.runtime.ranks import locally

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

_HOW_TO_RUN = "Give it to a pool: `{} >> pool`; `.local(...)` of the function runs it in this process."
_OF_OTHERS = ("apply_async", "delay", "remote", "spawn", "submit")  # methods of other libraries that send calls
_SHAPES = 64  # cached argument shapes of a function; with *args or **kwargs there is no limit to them

Destination = Target | ModuleType | ActivePool


def _refuse_value(self: Any, *_: object) -> NoReturn:
    raise TypeError(f"{self!r} is a call that has not run, not its result. {_HOW_TO_RUN.format(self)}")


class PendingCompute(Generic[R_co]):
    """A call that has not been run. If it is dropped without having been sent, a RuntimeWarning is issued.

    Args:
        fn: the undecorated function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        timeout: seconds the call may run, counted from its start on the node; None for no limit.
        retries: number of times to run it again if its worker is lost; exceptions of the function are not retried.
    """

    __slots__ = ("_fn", "_used", "args", "kwargs", "retries", "timeout")

    def __init__(
        self,
        fn: Callable[..., R_co],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        timeout: float | None = None,
        retries: int = 0,
    ) -> None:
        self._fn: Final = fn
        self.args: Final = args
        self.kwargs: Final = kwargs
        self.timeout: Final = timeout
        self.retries: Final = retries
        self._used = False

    @property
    def fn(self) -> Callable[..., R_co]:
        """The undecorated function."""
        self._used = True  # the caller runs the call, or shows it
        return self._fn

    def __del__(self) -> None:
        # the attribute is missing if __init__ failed
        if not getattr(self, "_used", True) and not sys.is_finalizing():
            name = _name(self._fn)
            text = f"A call of {name}() was dropped and never run. {_HOW_TO_RUN.format(name + '(...)')}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def with_timeout(self, seconds: float | None) -> Self:
        """Return the same call with another time limit in seconds; None for no limit."""
        return type(self)(self.fn, self.args, self.kwargs, checked_timeout(seconds), self.retries)

    def __rshift__(self, target: Destination) -> R_co:
        """Run once, on one node, and return or raise what the function does (an iterator for a generator function)."""
        __tracebackhide__ = True  # IPython and pytest leave such frames out of tracebacks
        self._used = True
        result = _sent(_resolve(target, self, ">>")._run, self)
        if result is NotImplemented:
            raise TypeError(
                f"{self!r} returned NotImplemented, which an operator of Python cannot give: it stands for an operator "
                "that does not exist. Return something else."
            )
        return result

    def __matmul__(self, target: Destination) -> list[R_co]:
        """Run once on every node, and return the results as a list indexed by node."""
        __tracebackhide__ = True
        self._used = True
        return _sent(_resolve(target, self, "@")._broadcast, self)

    def __gt__(self, target: Destination) -> Future[R_co]:
        """Run once, on one node, in the background."""
        __tracebackhide__ = True
        self._used = True
        return _sent(_resolve(target, self, ">")._run_async, self)

    @overload
    def __and__(self, other: PendingCompute[S]) -> Group[R_co, S]: ...
    @overload
    def __and__(self, other: Group[*Ts]) -> Group[R_co, *Ts]: ...
    def __and__(self, other: Any) -> Any:
        """Return a group of calls to run concurrently: `(p & q) >> pool`."""
        return Group((self,)) & other

    if not TYPE_CHECKING:  # hidden from type checkers, which therefore reject these operators

        def __rand__(self, other: object) -> NoReturn:
            _operands(other)

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # looked up by Python itself, for example when copying
                raise AttributeError(name)
            raise AttributeError(
                f"{self!r} is a call that has not run, so it has no {name!r} of its result. {_HOW_TO_RUN.format(self)}"
            )

        __bool__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = __index__ = _refuse_value
        __lt__ = __le__ = __ge__ = __contains__ = __neg__ = __abs__ = _refuse_value
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse_value

        def __await__(self) -> NoReturn:
            raise TypeError(f"{self!r} is a call that has not been sent. Write `await ({self!r} > pool)`.")

    def __reduce__(self) -> tuple[Any, ...]:
        self._used = True  # it is used elsewhere: as an argument, or as the result of a function on a node
        return type(self), (self._fn, self.args, dict(self.kwargs), self.timeout, self.retries)

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
    """Calls to run concurrently; `group >> pool` is the tuple of their results, in the order of the calls.

    Attributes:
        calls: the calls.
        return_exceptions: whether the exceptions of calls are returned in place of their results.
    """

    calls: tuple[PendingCompute[Any], ...]
    return_exceptions: bool = False

    def with_timeout(self, seconds: float | None) -> Self:
        """Return the same group with another time limit for each call in seconds; None for no limit."""
        return replace(self, calls=tuple(call.with_timeout(seconds) for call in self.calls))

    def __rshift__(self, target: Destination) -> tuple[*Ts]:
        """Run all calls concurrently on the pool's nodes and return their results; raise the first error."""
        send = functools.partial(_resolve(target, self, ">>")._run_parallel, return_exceptions=self.return_exceptions)
        __tracebackhide__ = True
        results: Any = _sent(send, self.calls) if self.calls else ()
        return results  # type: ignore[no-any-return]

    @overload
    def __and__(self, other: PendingCompute[S]) -> Group[*Ts, S]: ...
    @overload
    def __and__(self, other: Group[*tuple[Any, ...]]) -> Group[*tuple[Any, ...]]: ...
    def __and__(self, other: Any) -> Any:
        """Return the group with further calls added."""
        returned = isinstance(other, Group) and other.return_exceptions
        return Group((*self.calls, *_operands(other)), self.return_exceptions or returned)

    if not TYPE_CHECKING:  # see PendingCompute
        __rand__ = PendingCompute.__rand__
        __matmul__, __gt__ = _refuse_matmul, _refuse_gt

    def __repr__(self) -> str:
        return _group_text(self.calls, " & ")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stream(Generic[R_co]):
    """Calls to run concurrently; `stream >> pool` iterates over their results as they arrive.

    Attributes:
        calls: the calls.
        ordered: whether results are in the order of the calls, or in order of arrival.
        return_exceptions: whether exceptions are yielded in place of results.
    """

    calls: tuple[PendingCompute[R_co], ...]
    ordered: bool = True
    return_exceptions: bool = False

    def with_timeout(self, seconds: float | None) -> Self:
        """Return the same calls with another time limit for each in seconds; None for no limit."""
        return replace(self, calls=tuple(call.with_timeout(seconds) for call in self.calls))

    def __rshift__(self, target: Destination) -> Iterator[R_co]:
        """Run all calls concurrently; return an iterator over the results, which raises in place of a failed call's."""
        pool = _resolve(target, self, ">>")
        if not self.calls:
            return iter(())
        return pool._run_stream(self.calls, ordered=self.ordered, return_exceptions=self.return_exceptions)

    if not TYPE_CHECKING:  # see PendingCompute
        __matmul__, __gt__ = _refuse_matmul, _refuse_gt

    def __repr__(self) -> str:
        return f"gather({_group_text(self.calls, ', ')}, stream=True)"


class ComputeFunction(Generic[P, R]):
    """A function whose calls are lazy; made by `@compute`.

    Attributes:
        fn: the undecorated function.
        local: runs it in this process, as if on the only node of a pool. An `async def` function runs to completion in
            a separate event loop, as on nodes.
        name: its name.
        timeout: seconds each of its calls may run; None for no limit.
        retries: number of times a call is run again if its worker is lost.
    """

    def __init__(self, fn: Callable[P, R], *, timeout: float | None = None, retries: int = 0) -> None:
        functools.update_wrapper(self, fn)
        self.fn = _checked_function(fn)
        self.local: Callable[P, R] = locally(fn)
        self.name = _name(fn)
        self.timeout = checked_timeout(timeout)
        self.retries = checked_retries(retries)
        self._shapes: set[tuple[int | str, ...]] = set()

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> PendingCompute[R]:
        """Return the call without running it.

        Raises:
            TypeError: the arguments do not match the function's signature.
        """
        # whether arguments match depends only on their number and names; binding costs ten times as much as this
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
        except ValueError:  # a C function without a signature
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

    if not TYPE_CHECKING:  # hidden from type checkers, which therefore reject these operators

        def __rshift__(self, _other: object) -> NoReturn:
            raise TypeError(
                f"{self.name} is a function that was not called: write `{self.name}(...) >> pool`, with its arguments."
            )

        def __getattr__(self, name: str) -> NoReturn:
            hint = f" Write `{vars(self).get('name')}(...) >> pool`." if name in _OF_OTHERS else ""
            raise AttributeError(f"A compute function has no attribute {name!r}.{hint}", name=name, obj=self)

        __matmul__ = __gt__ = __and__ = __rshift__

    def __repr__(self) -> str:
        return f"<compute function {self.name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by reference if the qualified name leads to this object, by value in `__main__`."""
        module, path = self.__module__, getattr(self, "__qualname__", "")
        if module not in ("__main__", "__mp_main__") and _attribute(sys.modules.get(module), path) is self:
            return path
        return _rebuild, (self.fn, self.timeout, self.retries)


@overload
def compute(  # the coroutine of an `async def` function is awaited on the node
    fn: Callable[P, Coroutine[Any, Any, R]], /, *, timeout: float | None = None, retries: int = 0
) -> ComputeFunction[P, R]: ...
@overload
def compute(fn: Callable[P, R], /, *, timeout: float | None = None, retries: int = 0) -> ComputeFunction[P, R]: ...
@overload
def compute(
    fn: None = None, /, *, timeout: float | None = None, retries: int = 0
) -> Callable[[Callable[P, R]], ComputeFunction[P, R]]: ...
@suggesting("@sky.compute")
def compute(fn: Any = None, /, *, timeout: float | None = None, retries: int = 0) -> Any:
    """Make calls of a function lazy, to be sent to a pool by an operator. Must be the outermost decorator.

    A call of an `async def` function runs to completion in its own event loop on the node; with
    `ComputePool(concurrency=...)` several run at once, each in a thread.

    Args:
        fn: the function, when used bare.
        timeout: seconds each call may run, counted from its start on the node; None for no limit.
        retries: number of times to run a call again if its worker is lost; exceptions of the function are not retried.

    Raises:
        ConfigError: the timeout is not positive, or `retries` is negative.
        TypeError: the decorated object is not a function, or is an asynchronous generator.

    Examples:
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
@overload
def gather(
    *calls: PendingCompute[R], stream: Literal[False] = ..., ordered: bool = ..., return_exceptions: bool
) -> Group[*tuple[R | Exception, ...]]: ...
@overload
def gather(
    *calls: PendingCompute[R], stream: Literal[True], ordered: bool = ..., return_exceptions: bool
) -> Stream[R | Exception]: ...
# fmt: on
def gather(*calls: Any, stream: bool = False, ordered: bool = True, return_exceptions: bool = False) -> Any:
    """Group calls to run concurrently; `gather(p, q) >> pool` is the same as `(p & q) >> pool`.

    Args:
        calls: the calls; there may be none.
        stream: return an iterator over the results as they arrive, instead of a tuple.
        ordered: if streaming, yield results in the order of the calls; otherwise in order of arrival.
        return_exceptions: return the exceptions of calls in place of their results, so that all calls run. Otherwise
            the first is raised, and the other calls are stopped.

    Raises:
        TypeError: an argument is not a call.
    """
    for position, call in enumerate(calls, 1):
        if not isinstance(call, PendingCompute):
            several = isinstance(call, list | tuple | Iterator)
            remedy = "unpack it: gather(*calls)" if several else "write gather(f(1), f(2))"
            text = f"gather() takes calls of compute functions; argument {position} is {_found(call)}: {remedy}."
            raise TypeError(text)
    return Stream(calls, ordered, return_exceptions) if stream else Group(calls, return_exceptions)


def _sent(send: Callable[[S], R], calls: S) -> R:
    try:
        return send(calls)
    except (Exception, KeyboardInterrupt) as error:
        raise shortened(error)  # noqa: B904 - it is the error itself, with its own cause


def _resolve(target: Any, call: object, operator: str) -> Target:
    """Return the pool that the right-hand side of an operator stands for."""
    if target is sky or (isinstance(target, ModuleType) and target.__name__ == "skyward"):
        return active_target(
            lambda: f"`{call!r} {operator} sky`",
            "Open one around it with `with sky.ComputePool(...):`, or decorate the function it stands in with "
            "`@sky.pool(...)`.",
        )
    if isinstance(target, type) or not hasattr(target, "_run_stream"):
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
    if isinstance(value, ComputeFunction | MethodType):
        name = value.name if isinstance(value, ComputeFunction) else value.__name__
        return f"the function {name}, which was not called: write {name}(...)"
    if isinstance(value, ModuleType | type):
        return f"the {'class' if isinstance(value, type) else 'module'} {value.__name__}"
    return f"{reprlib.repr(value)} of type {type(value).__name__}"


def _checked_function(fn: Callable[P, R]) -> Callable[P, R]:
    if isinstance(fn, ComputeFunction):
        raise TypeError(f"{fn.name} is a compute function already; decorate it once.")
    if not callable(fn):
        raise TypeError(f"@compute decorates a function, found {_found(fn)}.")
    if inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"@compute decorates functions, generator functions and `async def` functions; {_name(fn)} is an "
            "asynchronous generator. Write an ordinary generator function, or return a list."
        )
    return fn


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
