"""`Resource`: one thing that exists at a provider and belongs to a pool, as the provider's labels tell."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Resource(TypedDict):
    """A node, or something else that a pool has at its provider.

    `node` is -1 for what belongs to no node. `user` is who started the pool, as "name@host", and `owner` the process;
    each is "" where no label says so. `hourly` and `cost` are of what is rented, in USD per hour and so far, None where
    they are not known. `seen`, in seconds since 1970, is when the pool's client last noted that it is alive.
    `pool_name` is the name of a pool that has one; while it is kept it lives `until`, in seconds since 1970.
    """

    pool: str
    node: int
    name: str
    state: str
    user: str
    owner: NotRequired[str]
    image: NotRequired[str]
    id: NotRequired[str]
    host: NotRequired[str]
    pid: NotRequired[int]
    type: NotRequired[str]
    market: NotRequired[str]
    hourly: NotRequired[float | None]
    cost: NotRequired[float | None]
    seen: NotRequired[float | None]
    pool_name: NotRequired[str]
    until: NotRequired[float]
