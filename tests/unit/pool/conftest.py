"""Dispatchers in a time of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skyward._pool import dispatcher, scheduler
from tests.unit.pool.fakes import FakePool, FakeTime

Make = Callable[..., FakePool]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A dispatcher with connected workers: `make(workers=2, slots=1)`."""

    def patch(time: FakeTime) -> None:
        for module in (dispatcher, scheduler):
            monkeypatch.setattr(module, "time", time)

    return lambda **shape: FakePool(patch, **shape)
