"""`sky.debug`: a call in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

import skyward as sky


@sky.compute
def add_to(numbers: list[int], number: int) -> list[int]:
    numbers.append(number)
    return numbers


@sky.compute
def items() -> Iterator[int]:
    yield from range(3)


@sky.compute
def divide(x: int) -> float:
    return 1 / x


@sky.compute
def place() -> sky.InstanceInfo | None:
    return sky.instance_info()


def test_the_function_gets_copies() -> None:
    """As a node would: what it changes is not the caller's."""
    mine = [1]
    assert sky.debug(add_to(mine, 2)) == [1, 2]
    assert mine == [1]


def test_a_generator_gives_its_items() -> None:
    """They are made inside."""
    assert sky.debug(cast(Any, items())) == [0, 1, 2]


def test_what_is_no_call_is_refused() -> None:
    """With an example."""
    with pytest.raises(sky.errors.ConfigError, match=r"takes one call, as in sky.debug\(train\(10\)\)"):
        sky.debug(cast(Any, divide))
