"""Machines of `sky.SSH` hear from a client that lives more often than its lease asks for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import skyward as sky
from skyward.providers.base import PoolRequest

BEATS = 5


def test_a_short_lease_is_kept_alive() -> None:
    """With `ttl=0.6` heartbeats come every 0.2 s, not every 5 s, after which a watchdog would have ended the nodes."""
    allocation = sky.SSH("host").open(PoolRequest(pool_id="p", lease_s=0.6))
    beats = threading.Semaphore(0)
    machine = SimpleNamespace(watchdog=SimpleNamespace(beat=beats.release))
    allocation.machines.append(cast(Any, machine))
    beating = threading.Thread(target=allocation._beat)
    beating.start()
    try:
        assert all(beats.acquire(timeout=4.0) for _ in range(BEATS))
    finally:
        allocation.ended.set()
        beating.join(10)
    assert not beating.is_alive()
