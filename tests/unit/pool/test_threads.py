"""A process that cannot start more threads says so, and what to do."""

from __future__ import annotations

import threading

import pytest

import skyward as sky
from skyward.errors import PoolError


@pytest.mark.parametrize("names", [("skyward-clock",), ("skyward-heartbeat",), ("skyward-node", "skyward-stop")])
def test_a_pool_that_cannot_start_threads_says_what_to_do(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its threads it is; nothing is left of the pool, also where none can be started to close it."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    pool = sky.ComputePool(sky.Local(), display="quiet")
    with pytest.raises(PoolError, match=r"No more threads can be started .*ulimit -u.*fewer nodes"):
        pool.open()
    assert not any(about["pool"] == pool.id for about in sky.Local().find())
