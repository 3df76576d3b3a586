"""Exceptions between processes of which one has changed how exceptions are pickled."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Iterator

import pytest
from tblib import pickling_support

from skyward.wire import payload


class OwnError(Exception):
    """Made by other parameters than it holds."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number


@pytest.fixture
def as_with_dask() -> Iterator[None]:
    """What the import of `distributed` does to a process."""
    before = dict(copyreg.dispatch_table)
    pickling_support.install()
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@pytest.mark.usefixtures("as_with_dask")
@pytest.mark.parametrize("error", [ValueError("x", 1), KeyError("k"), OSError(2, "gone", "/f"), OwnError(3)])
def test_exceptions_need_no_tblib_on_the_other_side(error: Exception) -> None:
    """Though the process pickles them with it: alone, and among other values."""
    assert b"tblib" in pickle.dumps(error)

    for value in (error, {"of": [error]}):
        data, buffers = payload.dumps(value)
        assert b"tblib" not in data
        assert repr(payload.loads(data, buffers)) == repr(value)
