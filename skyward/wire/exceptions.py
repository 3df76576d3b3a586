"""Transfer of exceptions between processes: decomposition, and type, text and traceback of those that cannot be
pickled.

Pickling itself is in `payload`; nothing here reads bytes.
"""

from __future__ import annotations

import copyreg
import linecache
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MemberDescriptorType
from typing import Any, NamedTuple, TypeVar, cast

from skyward.errors import (
    RemoteError,
    RemoteTraceback,
    SkywardError,
)

_FRAME = re.compile(r'^(?P<indent>[ |]*)File "(?P<file>[^"]+)", line (?P<line>\d+), in .*$')
_LONGEST = 200_000  # maximum number of characters sent of a string
_HEAP_TYPE = 1 << 9  # flag of classes that are not built into the interpreter
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_OURS = tuple(f"{_PACKAGE}{part}{os.sep}" for part in ("runner", "wire"))  # frames outside the user's code
T = TypeVar("T")


class Stopping(BaseException):
    """Base of exceptions raised in a thread from outside, in any code: a signal, or the interrupt of a call."""


def tried(action: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """Return the result of an action that calls foreign code, or that of `otherwise` if it raises, even SystemExit."""
    try:
        return action()
    except Stopping:
        raise
    except BaseException as problem:
        return otherwise(problem)


def said(error: BaseException) -> str:
    """Return the name and text of an exception, as part of a sentence."""
    name, text = _class_name(error).rpartition(".")[2], _text(error)
    return f"{name}: {text}".rstrip(". ") if text else name


class Record(NamedTuple):
    """The transferable data of an exception.

    Attributes:
        type_name: qualified name of its class.
        text: its own text.
        trace: the formatted traceback, with those of its causes.
        ordinary: whether it derives from Exception.
        notes: its notes, as added by `add_note`.
        data: its pickle, None if the exception itself is not sent.
        problem: the reason why it is not.
    """

    type_name: str
    text: str
    trace: str
    ordinary: bool
    notes: tuple[str, ...] = ()
    data: bytes | None = None
    problem: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Record:
        """Return the record of an exception that has been raised, or is about to be."""
        name, text = _class_name(error), _text(error)
        if type(error) is SystemExit:
            text = tried(lambda: "" if error.code is None else repr(error.code), lambda _: text)
        notes = tried(lambda: tuple(map(_text, getattr(error, "__notes__", ()))), lambda _: ())
        trace = _shortened(_formatted(error, f"{name}: {text}\n"))
        return cls(name, _shortened(text), trace, isinstance(error, Exception), notes)

    def as_remote_error(self) -> RemoteError:
        """Return the replacement for an exception that is not raised as itself."""
        said = f"{self.type_name}: {self.text}" if self.text else self.type_name
        if self.ordinary:
            message = f"The function raised {said} (which cannot be raised here as itself: {self.problem})."
        else:
            left = f"called sys.exit({self.text})" if self.type_name == "SystemExit" else f"raised {said}"
            message = f"The function {left}, which would end the process. Raise an ordinary exception instead."
        error = RemoteError(message, type_name=self.type_name, traceback=self.trace)
        self.complete(error)
        return error

    def complete(self, error: BaseException) -> None:
        """Set the remote traceback as the cause of an exception created from this record, and add the notes.

        Raises:
            BaseException: its class does not allow them to be set.
        """
        restore(error, {"__cause__": RemoteTraceback(_with_source(self.trace)), "__notes__": list(self.notes)})


def masked(record: Record, error: BaseException, conceal: Callable[[str], str]) -> Record:
    """Return the record with its texts masked; if one has changed, mask the strings in the exception, too."""
    notes = tuple(map(conceal, record.notes))
    concealed = record._replace(text=conceal(record.text), trace=conceal(record.trace), notes=notes)
    if concealed == record:
        return record

    def replace() -> str:
        args = tuple(conceal(value) if isinstance(value, str) else value for value in error.args)
        state = {name: conceal(value) for name, value in vars(error).items() if isinstance(value, str)}
        restore(error, {**state, "args": args, **({"__notes__": list(notes)} if notes else {})})
        return ""

    return concealed._replace(problem=tried(replace, lambda _: "what it was made of holds a secret"))


def reduce(error: BaseException) -> tuple[Any, ...] | None:
    """Return how to pickle an exception whose class defines `__init__` or slots, but nothing about pickling.

    Python would call that `__init__` with `args`, the arguments of `super().__init__`: this fails, or silently creates
    a different exception. None for all other exceptions, unless tblib would pickle them.
    """
    kind = type(error)
    if isinstance(kind.__reduce__, FunctionType) or isinstance(kind.__reduce_ex__, FunctionType):
        return _plainly(error)
    slots = {name: getattr(error, name) for name in _slots(kind) if hasattr(error, name)}
    if not slots and not isinstance(kind.__init__, FunctionType) and not isinstance(kind.__new__, FunctionType):
        return _plainly(error)
    reduced: Any = error.__reduce__()
    _, args, *state = reduced
    return rebuild, (kind, args), {**(state[0] if state else {}), **slots} or None, None, None, restore


def _plainly(error: BaseException) -> tuple[Any, ...] | None:
    """Return Python's own reduction if tblib has replaced it; None if it has not been replaced.

    Dask makes tblib do so for all exceptions of a process that imports it (`pickling_support`). The other side would
    need tblib for each of them, and may not have it.
    """
    other = copyreg.dispatch_table.get(type(error))
    if getattr(other, "__module__", "").partition(".")[0] != "tblib":
        return None
    reduced: Any = error.__reduce_ex__(5)
    return reduced  # type: ignore[no-any-return]


def _slots(kind: type[BaseException]) -> list[str]:
    """Return the slots of a class and its bases, which Python omits when it pickles exceptions."""
    bases = (base for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE)
    return [name for base in bases for name, value in vars(base).items() if isinstance(value, MemberDescriptorType)]


def rebuild(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Create an exception using only the built-in part of its class."""
    base: Any = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


def restore(error: BaseException, state: dict[str, Any]) -> None:
    """Set an exception's attributes, bypassing any `__setattr__` of its class."""
    for name, value in state.items():
        object.__setattr__(error, name, value)


def _class_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: object) -> str:
    """Return the text of an exception, or of a note."""
    return tried(lambda: str(value), lambda problem: f"<its text is unavailable: {type(problem).__name__}>")


def _formatted(error: BaseException, last_line: str) -> str:
    """Return the traceback, including those of the causes unless the text of one of these cannot be read."""
    return tried(
        lambda: "".join(_user_frames(error).format()),
        lambda _: "".join(
            ("Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__), last_line)
        ),
    )


def add_note(error: BaseException, note: str) -> None:
    """Add a note, bypassing any `__setattr__` of the class."""
    restore(error, {"__notes__": [*getattr(error, "__notes__", ()), note]})


def _shortened(text: str) -> str:
    """Return a string without its middle if it is too long to be sent."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}\n... ({len(text) - _LONGEST} characters) ...\n{text[-_LONGEST // 2 :]}"


def _user_frames(error: BaseException) -> traceback.TracebackException:
    """Return the formatted exception and its causes, without frames that do not help the user.

    These are the runner's, before the first frame of the user's code. For skyward's own errors they are also those
    after the last frame of the user's code, or all of them, as the text of such an error is sufficient.
    """
    whole = traceback.TracebackException.from_exception(error, compact=True)
    left: list[tuple[traceback.TracebackException | None, BaseException | None]] = [(whole, error)]
    while left:
        told, found = left.pop()
        if told is None or found is None:
            continue
        left += [(told.__cause__, found.__cause__), (told.__context__, found.__context__)]
        if isinstance(found, SkywardError):
            while told.stack and told.stack[-1].filename.startswith(_PACKAGE):
                told.stack.pop()
        user = next((i for i, frame in enumerate(told.stack) if not frame.filename.startswith(_OURS)), 0)
        del told.stack[:user]
        if not told.stack:
            told.stack = cast(Any, None)  # omits the heading, too
    return whole


def _with_source(trace: str) -> str:
    """Return a traceback's text with source lines that only this side has: those of code sent by value."""
    lines = trace.splitlines()
    full = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        full.append(line)
        frame = _FRAME.match(line)
        if frame and not following.startswith(frame["indent"] + "  "):
            source = linecache.getline(frame["file"], int(frame["line"])).strip()
            if source:
                full.append(f"{frame['indent']}  {source}")
    return "\n".join(full)
