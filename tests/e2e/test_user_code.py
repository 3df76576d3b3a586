"""Whatever user code does to the process that it runs in, its caller gets the right answer and the pool goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import skyward as sky
from skyward.errors import RemoteTraceback
from tests.e2e import user_code_functions as functions

FROZEN = (functions.Frozen(3), functions.Slotted(4))


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    """Two nodes, as processes."""
    with sky.ComputePool(sky.Local(), nodes=2) as pool:
        yield pool


@pytest.mark.parametrize("error", FROZEN, ids=lambda error: type(error).__name__)
def test_an_exception_that_cannot_be_changed_is_raised_as_itself(pool: sky.ComputePool, error: Exception) -> None:
    """By any operator, from a function, a muted one and a generator; with its cause and the note of its node."""
    ways = (
        lambda: functions.fail(error) >> pool,
        lambda: functions.fail(error) @ pool,
        lambda: (functions.fail(error) > pool).result(),
        lambda: functions.fail_in_silence(error) >> pool,
        lambda: list(functions.fail_late(error) >> pool),
        lambda: list(sky.gather(functions.fail(error), stream=True) >> pool),
    )
    for way in ways:
        with pytest.raises(type(error)) as raised:
            way()
        assert raised.value == error
        assert isinstance(raised.value.__cause__, RemoteTraceback)
        assert "on node" in raised.value.__notes__[-1]
