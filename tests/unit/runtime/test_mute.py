from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from skyward._compute import compute
from skyward.errors import ConfigError
from skyward.runtime import output
from skyward.runtime.output import silent, stderr, stdout
from tests.unit.runtime.conftest import Place, Record


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def speak(text: str = "words") -> str:
    print(text)
    print(text, file=sys.stderr)
    return text


def heard(sink: Record, fn: Callable[..., Any], *args: Any) -> set[str]:
    """The streams that show anything when `fn` runs as a task."""
    sink.written.clear()
    with output.task_output(1):
        fn(*args)
    return {stream for _, stream, _ in sink.written}


@pytest.mark.parametrize(
    ("decorate", "on_head", "elsewhere"),
    [
        (stdout(only="head"), {"stdout", "stderr"}, {"stderr"}),
        (stderr(only="head"), {"stdout", "stderr"}, {"stdout"}),
        (stdout(only=lambda info: info.node == 2), {"stderr"}, {"stdout", "stderr"}),
        (silent, set(), set()),
    ],
    ids=["stdout head", "stderr head", "predicate", "silent"],
)
def test_who_is_heard(
    sink: Record, place: Place, decorate: Callable[..., Any], on_head: set[str], elsewhere: set[str]
) -> None:
    """The output, stream by stream, on the head and on another node."""
    quiet = decorate(speak)
    place(0, 3)
    assert heard(sink, quiet) == on_head
    place(2, 3)
    assert heard(sink, quiet) == elsewhere
    assert quiet("value") == "value"


def test_outside_a_pool_they_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Run locally, a decorated function prints."""
    silent(stdout(only="head")(speak))("here")
    assert capsys.readouterr() == ("here\n", "here\n")


def test_outside_a_pool_the_predicate_is_not_asked() -> None:
    """There is no InstanceInfo to ask it about."""
    assert stdout(only=lambda _info: 1 / 0 > 0)(speak)("x") == "x"


@pytest.mark.parametrize("only", ["tail", "", 0, None])
def test_any_other_only_is_refused_at_decoration(only: Any) -> None:
    """A wrong word is found before anything runs."""
    with pytest.raises(ValueError, match='takes "head" or a function'):
        stdout(only=only)
    with pytest.raises(ConfigError, match=r"@sky\.stderr"):
        stderr(only=only)


def test_silent_takes_no_arguments() -> None:
    """@sky.silent(only=...) is a misunderstanding; a non-function too."""
    with pytest.raises(ConfigError, match="takes no arguments"):
        silent("head")  # type: ignore[arg-type]


def test_an_error_in_a_muted_call_is_raised_and_muting_ends(sink: Record, place: Place) -> None:
    """The exception is the user's own; what is printed afterwards is heard."""
    place(1, 2)

    @silent
    def fail() -> None:
        print("no")
        raise KeyError("mine")

    with output.task_output(1):
        with pytest.raises(KeyError, match="mine"):
            fail()
        print("after")
    assert sink.written == [(1, "stdout", "after\n")]


def test_an_exception_that_forbids_changes_passes(sink: Record, place: Place) -> None:
    """Context managers made of generators would raise FrozenInstanceError in its place."""
    place(1, 2)
    error = Frozen(3)

    @silent
    def fail() -> None:
        raise error

    with pytest.raises(Frozen) as raised, output.task_output(1):
        fail()
    assert raised.value is error
    assert sink.written == []


def test_a_concurrent_call_in_the_same_worker_keeps_its_output(sink: Record, place: Place) -> None:
    """One call is muted, the other prints while it runs: every line of the second arrives, none of the first."""
    place(1, 2)
    together = threading.Barrier(2)

    def chatter(number: int) -> None:
        for line in range(100):
            together.wait()
            print(number, line)

    def task(number: int, fn: Callable[[int], None]) -> None:
        with output.task_output(number):
            fn(number)

    threads = [threading.Thread(target=task, args=args) for args in ((1, silent(chatter)), (2, chatter))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.text(1) == ""
    assert sink.text(2) == "".join(f"2 {line}\n" for line in range(100))


@silent
def numbers(count: int) -> Iterator[int]:
    """Chatty generator."""
    for number in range(count):
        print("making", number)
        yield number
    print("done")


def test_a_generator_is_muted_while_it_runs_and_only_then(sink: Record, place: Place) -> None:
    """Its body is silent at every step; the code that iterates it is heard in between."""
    place(0, 1)
    assert inspect.isgeneratorfunction(numbers)
    with output.task_output(1):
        for number in numbers(2):
            print("got", number)
    assert sink.text(1) == "got 0\ngot 1\n"


def test_two_muted_generators_may_be_interleaved(sink: Record, place: Place) -> None:
    """Steps of one never end or begin the muting of the other."""
    place(0, 1)
    with output.task_output(1):
        for pair in zip(numbers(2), numbers(3)):  # noqa: B905 - the first one ends first, on purpose
            print(pair)
    assert sink.text(1) == "(0, 0)\n(1, 1)\n"


def test_a_muted_generator_in_a_function_that_returns_it(sink: Record, place: Place) -> None:
    """Also when the decorated function only returns a generator."""
    place(0, 1)

    @silent
    def outer() -> Iterator[int]:
        return (len(speak("no")) + number for number in range(2))

    with output.task_output(1):
        assert list(outer()) == [2, 3]
    assert sink.written == []


def test_a_muted_generator_takes_values_errors_and_close(sink: Record, place: Place) -> None:
    """send, throw, close and the return value reach the generator's body, which stays muted in them."""
    place(0, 1)
    closed = []

    @silent
    def echo() -> Any:
        received = yield "first"
        print("received", received)
        try:
            yield received
        except KeyError as error:
            print("caught", error)
            yield "caught"
        try:
            yield "last"
        except GeneratorExit:
            print("closing")
            closed.append(True)
            raise
        return "end"

    with output.task_output(1):
        body = echo()
        assert next(body) == "first"
        assert body.send("sent") == "sent"
        assert body.throw(KeyError("thrown")) == "caught"
        assert next(body) == "last"
        body.close()
        whole = echo()
        for _ in range(3):
            next(whole)
        with pytest.raises(StopIteration) as stop:
            next(whole)
    assert closed == [True]
    assert stop.value.value == "end"
    assert sink.written == []


WORKER = """
import pickle, sys
from skyward.runtime import output

class Echo:
    def write(self, task, stream, text): sys.__stdout__.write(f"{task} {stream} {text}")

output.install(Echo())
fns = pickle.loads(sys.stdin.buffer.read())
for number, fn in enumerate(fns):
    with output.task_output(number):
        list(fn())
"""


def test_decorated_functions_travel_by_value(place: Place, tmp_path: Path) -> None:
    """Defined where no worker can import them, they are muted in a fresh process as they are here."""
    place(1, 2)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    def lines() -> list[str]:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        return []

    def steps() -> Iterator[int]:
        print("step to stdout")
        yield 1

    fns = [lines, stdout(only="head")(lines), stdout(only=lambda info: info.node == 1)(steps), silent(steps)]
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        data = cloudpickle.dumps(fns)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert pickle.loads(data)[0]() == []
    root = str(Path(output.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, script],
        input=data,
        capture_output=True,
        check=True,
        env={"PYTHONPATH": root, "COMPUTE_POOL": place(1, 2).to_json()},
    )
    assert done.stdout.decode().splitlines() == [
        "0 stdout to stdout",
        "0 stderr to stderr",
        "1 stderr to stderr",
        "2 stdout step to stdout",
    ]


@pytest.mark.parametrize("decorate", [silent, stdout(only="head")], ids=["silent", "stdout"])
def test_above_compute_they_are_refused(decorate: Callable[..., Any]) -> None:
    """There they would mute the making of the call instead of the call."""
    with pytest.raises(ConfigError, match=r"go below @sky\.compute"):
        decorate(compute(speak))
