"""What calls in the background copy, and what they share with the caller."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from skyward._pool.code.copies import Copies
from skyward.wire import payload

LARGE = 64 * 1024


def sent(copies: Copies, *args: Any) -> list[memoryview]:
    _, buffers = payload.dumps_arguments(args, {}, of="f")
    return copies.of_buffers(buffers, args)


@pytest.mark.parametrize(
    "container", [lambda array: array, lambda array: {"a": array}, lambda array: array.reshape(-1, 2).T, memoryview]
)
def test_the_value_of_the_moment(container: Any) -> None:
    """Later changes of an array, or of one that an argument holds, do not change what was sent."""
    array, copies = np.zeros(LARGE, np.uint8), Copies()
    held = container(array)
    (before,) = sent(copies, held)
    array[:] = 1
    (after,) = sent(copies, held)
    assert (set(before), set(after)) == ({0}, {1})


@pytest.mark.parametrize("value", [bytes(LARGE), np.frombuffer(bytes(LARGE), np.uint8)])
def test_what_cannot_change_is_not_copied(value: Any) -> None:
    """Read-only buffers are sent as they are."""
    buffers = payload.dumps_arguments((value,), {}, of="f")[1]
    assert all(one is other for one, other in zip(Copies().of_buffers(buffers, (value,)), buffers, strict=True))


def test_an_array_of_the_call_alone_is_not_copied() -> None:
    """An array that nothing but the call refers to cannot be changed."""
    (view,) = sent(Copies(), np.zeros(LARGE))
    assert isinstance(view.obj, np.ndarray)


def test_unchanged_buffers_share_a_copy() -> None:
    """As long as a call needs it; afterwards nothing keeps it."""
    array, copies = np.zeros(LARGE), Copies()
    (first,), (second,) = sent(copies, array), sent(copies, array)
    assert first.obj is second.obj
    assert len(copies._known) == 1
    del first, second
    gc.collect()
    assert len(copies._known) == 0


def test_items_of_an_iterator_are_taken_as_they_are() -> None:
    """A generator may change the object that it has yielded; items of containers are not copied."""

    def reused() -> Iterator[Any]:
        item, array = [0], np.zeros(LARGE)
        for number in range(3):
            item[0], array[:] = number, number
            yield item, array

    taken = list(Copies().of_items(reused()))
    assert [(item, array[-1]) for item, array in taken] == [([0], 0), ([1], 1), ([2], 2)]
    held = [[0], [1]]
    assert all(one is other for one, other in zip(Copies().of_items(held), held, strict=True))
    assert list(Copies().of_items(iter([[1]]), [2])) == [([1], 2)]


def test_an_item_that_cannot_be_pickled_is_passed_on() -> None:
    """The call that it belongs to reports it."""
    unpicklable = (each for each in "a")
    assert list(Copies().of_items(iter([unpicklable]))) == [unpicklable]
