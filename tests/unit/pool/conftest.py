"""Dispatchers in a time of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skyward.pool import dispatch
from tests.unit.pool.fakes import FakePool

Make = Callable[..., FakePool]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A dispatcher with connected workers: `make(workers=2, slots=1)`."""
    return lambda **shape: FakePool(lambda time: monkeypatch.setattr(dispatch, "time", time), **shape)
