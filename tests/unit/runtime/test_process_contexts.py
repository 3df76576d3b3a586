"""Contexts that outlive the call that entered them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import skyward as sky
from skyward.runtime import environment
from tests.printed import Printed

Make = Callable[[str], Callable[[], AbstractContextManager[str]]]


@pytest.fixture
def events() -> Iterator[list[str]]:
    """What the contexts have done, in order; all are left at the end."""
    seen: list[str] = []
    yield seen
    environment.leave_contexts()


@pytest.fixture
def make(events: list[str]) -> Make:
    """Make a context that notes when it is entered and left, and gives its name."""

    def of(name: str) -> Callable[[], AbstractContextManager[str]]:
        @contextmanager
        def context() -> Iterator[str]:
            events.append(f"+{name}")
            try:
                yield name
            finally:
                events.append(f"-{name}")

        return context

    return of


def test_a_context_is_entered_once_and_left_in_reverse(events: list[str], make: Make) -> None:
    """Later calls get what the first one got; leaving twice leaves once; then it can be entered anew."""
    assert [environment.enter_context(key, make(key)) for key in ("a", "b", "a", "b")] == ["a", "b", "a", "b"]
    assert events == ["+a", "+b"]

    environment.leave_contexts()
    environment.leave_contexts()
    assert events == ["+a", "+b", "-b", "-a"]

    environment.enter_context("a", make("a"))
    assert events[-1] == "+a"


def test_threads_enter_it_once(events: list[str], make: Make) -> None:
    """Of several threads one enters, and the others wait for it."""
    threads = [threading.Thread(target=environment.enter_context, args=("a", make("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert events == ["+a"]


def test_what_failed_to_be_entered_is_tried_again(events: list[str], make: Make) -> None:
    """An error passes through, and the next call is not told that all is well."""

    @contextmanager
    def broken() -> Iterator[str]:
        yield Path("not there yet").read_text()

    with pytest.raises(FileNotFoundError, match="not there yet"):
        environment.enter_context("a", broken)

    assert environment.enter_context("a", make("a")) == "a"


def test_a_failure_to_leave_stops_none_of_the_others(events: list[str], make: Make) -> None:
    """All are left, and the error is raised."""

    @contextmanager
    def sticky() -> Iterator[None]:
        yield
        raise OSError("stuck")

    environment.enter_context("a", make("a"))
    environment.enter_context("sticky", sticky)
    with pytest.raises(OSError, match="stuck"):
        environment.leave_contexts()

    assert events == ["+a", "-a"]


def test_one_context_may_enter_another(events: list[str], make: Make) -> None:
    """The inner one is left last, since it was there first."""

    @contextmanager
    def outer() -> Iterator[None]:
        environment.enter_context("inner", make("inner"))
        events.append("+outer")
        yield
        events.append("-outer")

    environment.enter_context("outer", outer)
    environment.leave_contexts()

    assert events == ["+inner", "+outer", "-outer", "-inner"]


def test_a_worker_leaves_at_its_end_what_calls_have_entered(printed: Printed) -> None:
    """Once for all calls, before the plugins' own hooks; what it prints is still shown."""

    def context(name: str) -> Callable[..., AbstractContextManager[None]]:
        @contextmanager
        def around(*_: object) -> Iterator[None]:
            yield
            print(f"left {name}")

        return around

    @sky.compute
    def enter() -> None:
        environment.enter_context("call", context("what a call entered"))

    plugin = sky.Plugin.create("hook").with_around_app(context("the plugin"))
    with sky.ComputePool(sky.Local(), plugins=[plugin], display="auto") as pool:
        assert [enter() >> pool, enter() >> pool] == [None, None]
        assert "left" not in printed.read().out

    assert printed.read().out.splitlines() == ["[0] left what a call entered", "[0] left the plugin"]
