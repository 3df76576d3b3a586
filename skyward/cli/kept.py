"""Kept pools of this user for `skyward ps` and `skyward down`: their names and times, from their records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from skyward.model.resource import Resource
from skyward.nodes.run_directory import sweep_orphans
from skyward.records.kept_pool import KeptPool, PoolLock, pool_records


def with_names(found: Sequence[Resource]) -> list[Resource]:
    """The same resources; those of pools with names have them, and say until when they are kept."""
    records = {record.pool: record for _, record in pool_records()}
    return [_named(each, records.get(str(each["pool"]))) for each in found]


def _named(each: Resource, record: KeptPool | None) -> Resource:
    if record is None:
        return each
    named: Resource = {**each, "pool_name": record.name}
    if record.until is not None:
        named["until"] = record.until
        named["state"] = time.strftime("kept until %H:%M:%S", time.localtime(record.until))
    return named


def identifiers(pools: Iterable[str]) -> dict[str, str]:
    """The identifiers of pools, by what a person calls them: identifiers and names."""
    names = {record.name: record.pool for _, record in pool_records()}
    return {pool: names.get(pool, pool) for pool in pools}


def names_of_pools() -> list[str]:
    """The names of this user's pools that have one."""
    return [record.name for _, record in pool_records()]


def kept_at(pool: str) -> str:
    """The provider on which a pool with a name is still kept, according to its record; "" where none is."""
    now = time.time()
    return next((r.provider for _, r in pool_records() if r.pool == pool and (r.until is None or r.until > now)), "")


def forget(pool: str) -> None:
    """Remove record and directory of a pool that has been ended; a client that has the pool does that itself."""
    for folder, record in list(pool_records()):
        if record.pool == pool:
            _remove(folder)
            sweep_orphans()


def _remove(folder: Path) -> None:
    lock = PoolLock(folder)
    if lock.acquire(wait=False):
        try:
            lock.remove()
        finally:
            lock.release()
