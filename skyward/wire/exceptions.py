"""Sends exceptions between processes: takes them apart, and keeps type, text and traceback of those it cannot pickle.

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
from types import FunctionType, MemberDescriptorType, TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from skyward.errors import (
    ConfigError,
    PluginError,
    RemoteError,
    RemoteTraceback,
    SerializationError,
    SkywardError,
    WireError,
)

_FRAME = re.compile(r'^(?P<indent>[ |]*)File "(?P<file>[^"]+)", line (?P<line>\d+), in .*$')
_LONGEST = 200_000  # characters of a string that are sent
_HEAP_TYPE = 1 << 9  # flag of classes that are not built into the interpreter
_FROM_TEXT: dict[str, type[Exception]] = {  # of a string alone
    f"{kind.__module__}.{kind.__qualname__}": kind for kind in (ConfigError, PluginError, SerializationError, WireError)
}
_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_OURS = tuple(f"{_PACKAGE}{part}{os.sep}" for part in ("runner", "wire"))  # frames below the user's code
_BUILT_IN = vars(BaseException)  # its attributes, also where a class has put something else in their place
T = TypeVar("T")


class Stopping(BaseException):
    """Base of what is raised in a thread from outside, in whatever code: a signal, or the interrupt of a call."""


def tried(action: Callable[[], T], otherwise: Callable[[BaseException], T]) -> T:
    """What an action gives that calls other people's code; that may raise anything, and try to end the process."""
    try:
        return action()
    except Stopping:
        raise
    except BaseException as problem:
        return otherwise(problem)


def said(error: BaseException) -> str:
    """Name and text of an exception, as a part of a sentence."""
    name, text = _class_name(error).rpartition(".")[2], _text(error)
    return f"{name}: {text}".rstrip(". ") if text else name


class Record(NamedTuple):
    """What is sent of an exception.

    Attributes:
        type_name: qualified name of its class.
        text: its own text.
        trace: the formatted traceback, with those of its causes.
        ordinary: whether it derives from Exception.
        notes: what `add_note` was told.
        data: its pickle, None if it is not sent itself.
        problem: why it is not.
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
        """The record of an exception that has been raised, or is about to be."""
        name, text = _class_name(error), _text(error)
        trace = _shortened(_formatted(error, f"{name}: {text}\n"))
        return cls(name, _shortened(text), trace, issubclass(type(error), Exception), _notes(error))

    def as_remote_error(self) -> RemoteError:
        """The stand-in for an exception that is not raised as itself."""
        said = f"{self.type_name}: {self.text}" if self.text else self.type_name
        if self.ordinary:
            message = f"The function raised {said} (which cannot be raised here as itself: {self.problem})."
        else:
            message = (
                f"The function was left by {said}, which ends a process and is therefore not passed on. "
                "A function ends by returning or by raising an ordinary exception."
            )
        error = RemoteError(message, type_name=self.type_name, traceback=self.trace)
        self.complete(error)
        return error

    def as_text(self) -> BaseException:
        """The stand-in where exceptions come as text: skyward's own of a known class, or a `RemoteError`."""
        kind = _FROM_TEXT.get(self.type_name)
        if kind is None or not self.ordinary:
            reasons = ["the pool has results='data'", *([self.problem] if self.problem else [])]
            return self._replace(problem="; ".join(reasons)).as_remote_error()
        error = kind(self.text)
        self.complete(error)
        return error

    def complete(self, error: BaseException) -> None:
        """Make the remote traceback the cause of an exception made from this record, and add the notes.

        Raises:
            BaseException: its class does not let them be set.
            TypeError: it hides what is read of any exception.
        """
        _BUILT_IN["__cause__"].__set__(error, RemoteTraceback(_with_source(self.trace)))
        restore(error, {"__notes__": list(self.notes)})
        for name in ("__cause__", "__context__", "__traceback__"):
            if getattr(error, name) is not _BUILT_IN[name].__get__(error):
                raise TypeError(f"its class has a {name} of its own")
        if error.__class__ is not type(error):
            raise TypeError("its class says that it is another")


def masked(record: Record, error: BaseException, conceal: Callable[[str], str]) -> Record:
    """The record with its texts masked. Where one has changed, so are the texts that the exception was made of."""
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
    """How to pickle an exception whose class has an `__init__` of its own, or slots, and says nothing about pickling.

    Python's way calls that `__init__` with `args`, which are whatever was given to `super().__init__`: it fails, or
    quietly makes another exception. None for all other exceptions, unless tblib would pickle them.
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
    """Python's own way, where tblib has put another in its place; None where nobody has.

    Dask has tblib do so for all exceptions of a process that imports it (`pickling_support`). The other side would need
    tblib for each of them, and has it only by chance.
    """
    other = copyreg.dispatch_table.get(type(error))
    if getattr(other, "__module__", "").partition(".")[0] != "tblib":
        return None
    reduced: Any = error.__reduce_ex__(5)
    return reduced  # type: ignore[no-any-return]


def _slots(kind: type[BaseException]) -> list[str]:
    """The attributes that a class and its bases keep in slots, which Python's way of pickling exceptions leaves out."""
    bases = (base for base in kind.__mro__ if base.__flags__ & _HEAP_TYPE)
    return [name for base in bases for name, value in vars(base).items() if isinstance(value, MemberDescriptorType)]


def rebuild(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception made by the built-in part of its class alone."""
    base: Any = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


def restore(error: BaseException, state: dict[str, Any]) -> None:
    """Set an exception's attributes, past any `__setattr__` of its class."""
    for name, value in state.items():
        object.__setattr__(error, name, value)


def _class_name(error: BaseException) -> str:
    """The qualified name of its class, past a metaclass of its own."""
    kind = type(error)
    name: str = vars(type)["__qualname__"].__get__(kind)
    module = vars(type)["__module__"].__get__(kind)
    return name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}"


def _text(value: object) -> str:
    """The text of an exception, or of a note, as a plain string."""
    return tried(lambda: str.__str__(str(value)), lambda problem: f"<its text cannot be had: {type(problem).__name__}>")


def _notes(error: BaseException) -> tuple[str, ...]:
    found: object = tried(lambda: getattr(error, "__notes__", ()), lambda _: ())
    return tuple(map(_text, found)) if type(found) is list or type(found) is tuple else ()


def _formatted(error: BaseException, last_line: str) -> str:
    """The traceback with those of its causes; without them where they, or other facts, cannot be read."""
    trace = _BUILT_IN["__traceback__"].__get__(error)
    return tried(
        lambda: "".join(_user_frames(error, trace).format()),
        lambda _: tried(
            lambda: "".join(("Traceback (most recent call last):\n", *traceback.format_tb(trace), last_line)),
            lambda _: last_line,
        ),
    )


def add_note(error: BaseException, note: str) -> None:
    """Add a note past any `__setattr__` of its class, and in the place of notes that are no list."""
    known = getattr(error, "__notes__", ())
    restore(error, {"__notes__": [*(known if isinstance(known, list) else ()), note]})


def _shortened(text: str) -> str:
    """A string, without its middle where it is so long that nobody reads it."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}\n... ({len(text) - _LONGEST} characters) ...\n{text[-_LONGEST // 2 :]}"


def _user_frames(error: BaseException, trace: TracebackType | None) -> traceback.TracebackException:
    """What there is to say of an exception and of its causes, each traceback without frames that say nothing of it.

    Those are the runner's, before the first of the user's code. Of skyward's own errors they are also those after the
    last of the user's code, or all: such an error says by itself what it is about.
    """
    whole = traceback.TracebackException(type(error), error, trace, compact=True)
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
            told.stack = cast(Any, None)  # no heading either
    return whole


def _with_source(trace: str) -> str:
    """A traceback's text with the source lines that only this side has: those of code sent by value."""
    lines = trace.splitlines()
    full = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        full.append(line)
        frame = _FRAME.match(line)
        if frame and not following.startswith(frame["indent"] + "  ") and _is_source(frame["file"]):
            source = linecache.getline(frame["file"], int(frame["line"])).strip()
            if source:
                full.append(f"{frame['indent']}  {source}")
    return "\n".join(full)


def _is_source(file: str) -> bool:
    """Whether a file that a node names may be looked into: not a device, nor whatever else never ends."""
    return file in linecache.cache or (file.endswith(".py") and Path(file).is_file())
