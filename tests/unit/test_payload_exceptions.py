"""Exceptions on their way from a node to the client: as themselves where they can, explained where not."""

from __future__ import annotations

import re
import sys
import threading
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

import skyward as sky
from skyward.errors import ConfigError, RemoteError, RemoteTraceback, SerializationError, WorkerLostError
from skyward.runner.threads import Interrupted
from skyward.runtime.masking import Masks
from skyward.wire import payload

LOCK = threading.Lock()


class Simple(Exception):
    pass


class TwoArguments(Exception):
    """Passes one text to Exception, from two arguments: the ordinary way of unpickling calls it with one."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class KeywordOnly(ValueError):
    def __init__(self, *, limit: int) -> None:
        super().__init__()
        self.limit = limit


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OwnNew(Exception):
    def __new__(cls, a: int, b: int) -> Self:
        return super().__new__(cls, a + b)

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = LOCK


class NotRebuilt(Exception):
    def __reduce__(self) -> Any:
        return str, ("not an exception",)


def raised(error: BaseException) -> BaseException:
    """The error as it arrives after it was raised in a function on the other side."""
    try:
        raise error
    except BaseException as caught:
        return payload.load_exception(payload.dump_exception(caught))


@pytest.mark.parametrize(
    "error",
    [
        Simple("a", 1),
        TwoArguments(5, "bad"),
        KeywordOnly(limit=3),
        Frozen(3),
        OwnNew(1, 2),
        FileNotFoundError(2, "No such file", "x.txt"),
        ModuleNotFoundError("No module named 'x'", name="x"),
        WorkerLostError("gone", node=1, rank=2, signal=9),
        ExceptionGroup("several", [TwoArguments(1, "x"), ValueError("y")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_itself(error: Exception) -> None:
    """Type, text, args and attributes of an exception survive, whatever its constructor looks like."""
    object.__setattr__(error, "__notes__", ["seen on Monday"])  # add_note() fails on frozen classes

    back = raised(error)

    assert type(error) is type(back)
    assert (str(error), repr(error.args)) == (str(back), repr(back.args))
    assert repr(vars(error)) == repr(vars(back))


def test_the_cause_is_the_remote_traceback() -> None:
    """The cause holds the other side's traceback, with the chain of its own causes and the notes."""

    def train() -> None:
        try:
            int("many")
        except ValueError as error:
            raise Simple("cannot train") from error

    try:
        train()
    except Simple as error:
        error.add_note("epoch 3")
        back = payload.load_exception(payload.dump_exception(error))
    cause = str(back.__cause__)

    assert isinstance(back.__cause__, RemoteTraceback)
    for part in ("in train", 'int("many")', "invalid literal", "direct cause", "Simple: cannot train", "epoch 3"):
        assert part in cause
    assert cause in "".join(traceback.format_exception(back))


def test_source_lines_are_added_where_only_this_side_has_them(tmp_path: Path) -> None:
    """Code sent by value has no file on the node; its lines are filled in from the client's."""
    file = tmp_path / "main.py"
    file.write_text("def f():\n    raise ValueError('from the script')\n")
    names: dict[str, Any] = {}
    exec(compile("def f():\n    raise ValueError('from the script')\n", str(file), "exec"), names)
    hidden = file.rename(tmp_path / "hidden.py")
    try:
        names["f"]()
    except ValueError as error:
        dumped = payload.dump_exception(error)
    hidden.rename(file)

    assert "    raise ValueError('from the script')" in str(payload.load_exception(dumped).__cause__)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unpicklable(), r"raised .*Unpicklable: holds a lock \(which cannot be raised here as itself: TypeError.*lock"),
        (NotRebuilt("x"), "Its class makes a str of it"),
        (
            SystemExit("bye"),
            r"^The function called sys\.exit\('bye'\), which would end the process\. Raise an ordinary",
        ),
        (SystemExit(), r"called sys\.exit\(\), which"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt, which"),
        (GeneratorExit(), "raised GeneratorExit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_raised_here_arrives_as_remote_error(error: BaseException, said: str) -> None:
    """An exception that cannot be rebuilt, or would end the client, arrives as RemoteError with all its facts."""
    back = raised(error)

    assert isinstance(back, RemoteError)
    with pytest.raises(RemoteError, match=said):
        raise back
    assert type(error).__name__ == back.type_name.rpartition(".")[2]
    assert "Traceback" in back.traceback
    assert isinstance(back.__cause__, RemoteTraceback)


def test_an_exception_whose_class_is_missing_here_arrives_as_remote_error() -> None:
    """A class that this side cannot import does not hide the error."""
    module = types.ModuleType("only_there")
    exec("class Lost(Exception): pass", vars(module))
    module.Lost.__module__ = "only_there"
    sys.modules["only_there"] = module
    try:
        dumped = payload.dump_exception(module.Lost("x"))
    finally:
        del sys.modules["only_there"]

    back = payload.load_exception(dumped)

    assert isinstance(back, RemoteError)
    assert back.type_name == "only_there.Lost"
    assert "No module named 'only_there'" in str(back)


def test_tracebacks_leave_out_what_says_nothing_of_the_function() -> None:
    """Of causes too: frames of the runner before the user's, and those of skyward's own errors after them."""
    try:
        try:
            sky.ComputePool(nodes=0)
        except ConfigError as error:
            raise SerializationError("It was refused.") from error
    except SerializationError as error:
        trace = str(payload.load_exception(payload.dump_exception(error)).__cause__)

    assert "skyward.errors.ConfigError: nodes= takes a whole number" in trace
    assert "skyward.errors.SerializationError: It was refused." in trace
    assert set(re.findall('File "([^"]+)"', trace)) == {__file__}


def test_a_missing_file_beside_a_module_points_at_includes() -> None:
    """Data files are not sent with modules."""
    error = raised(FileNotFoundError(2, "No such file", "/nodes/.skyward-code/package/table.csv"))
    assert "Image(includes=[...])" in error.__notes__[-1]


@pytest.mark.parametrize("kind", [ValueError, Simple, Frozen])
def test_secrets_are_masked_in_texts_and_in_what_an_exception_is_made_of(kind: type[Exception]) -> None:
    """Text, traceback and notes; also of an exception that cannot be changed."""
    error: Any = kind("the token hush-hush")
    object.__setattr__(error, "__notes__", ["of hush-hush"])
    data = payload.dump_exception(error, Masks(["hush-hush"]).conceal)

    assert b"hush-hush" not in data
    found = payload.load_exception(data)
    assert isinstance(found, kind) and found.args == ("the token ***",)
    assert found.__notes__ == ["of ***"] and "the token ***" in str(found.__cause__)


# classes that misbehave ------------------------------------------------------------------------------------------


def _exits(*_: object) -> Any:
    sys.exit(3)


def odd(members: dict[str, Any], base: type[BaseException] = Exception) -> Any:
    """An exception of a class with these members."""
    return type("Odd", (base,), members)("said")


ODD: dict[str, BaseException] = {
    **{name: odd({name: _exits}) for name in ("__str__", "__repr__", "__reduce__", "__getattr__", "__setattr__")},
    "rebuilding exits": odd({"__reduce__": lambda _: (exec, ("raise SystemExit(4)",))}),
    "group": BaseExceptionGroup("said", [SystemExit(4), ValueError("said")]),
    "exit": odd({"__str__": _exits}, SystemExit),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("masks", [None, Masks(["said"]).conceal], ids=["plain", "masked"])
def test_no_exception_ends_the_process_that_sends_it_or_gets_it(name: str, masks: Callable[[str], str] | None) -> None:
    """Whatever its class does: it arrives, with its type and traceback."""
    try:
        raise ODD[name]
    except BaseException as caught:
        data = payload.dump_exception(caught, masks)
    record = payload.load_record(data)
    back = payload.noted(payload.load_exception(data), "a note")

    assert record.type_name.rpartition(".")[2] == type(ODD[name]).__name__
    assert "test_no_exception_ends_the_process" in record.trace
    assert isinstance(back.__cause__, RemoteTraceback)


def test_an_interrupt_of_the_call_is_not_taken_for_its_error() -> None:
    """It strikes where the runner puts the exception into words, and goes through."""

    def interrupted(_: object) -> str:
        raise Interrupted

    with pytest.raises(Interrupted):
        payload.dump_exception(odd({"__str__": interrupted}))
