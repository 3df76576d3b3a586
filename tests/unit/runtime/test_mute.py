from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


@pytest.mark.parametrize("only", ["tail", "", 0, None])
def test_any_other_only_is_refused_at_decoration(only: Any) -> None:
    """A wrong word is found before anything runs."""
    with pytest.raises(ValueError, match='takes "head" or a function'):
        stdout(only=only)
    with pytest.raises(ConfigError, match=r"@sky\.stderr"):
        stderr(only=only)


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


def test_a_muted_generator_is_muted_to_its_end(sink: Record, place: Place) -> None:
    """Its items and its return value pass; closed early, its `finally` block is muted as well."""
    place(0, 1)

    @silent
    def count() -> Any:
        try:
            yield 1
            print("between")
            yield 2
        finally:
            print("closing")
        return "end"

    with output.task_output(1):
        body = count()
        assert next(body) == 1
        body.close()
        whole = count()
        assert [next(whole), next(whole)] == [1, 2]
        with pytest.raises(StopIteration) as stop:
            next(whole)
    assert stop.value.value == "end"
    assert sink.written == []


@pytest.mark.parametrize("decorate", [silent, stdout(only="head")], ids=["silent", "stdout"])
def test_above_compute_they_are_refused(decorate: Callable[..., Any]) -> None:
    """There they would mute the making of the call instead of the call."""
    with pytest.raises(ConfigError, match=r"go below @sky\.compute"):
        decorate(compute(speak))
