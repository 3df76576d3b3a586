"""Contexts that outlive the call that entered them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from skyward.runtime import environment

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
