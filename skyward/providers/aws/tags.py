"""The tags that everything of a pool bears from its creation: they are the only record there is."""

from __future__ import annotations

import os
from typing import Any

from skyward.providers.owner import USER, Owner, current_user
from skyward.system import time

POOL, OWNER, BEGAN, HOURLY = "skyward.pool", "skyward.owner", "skyward.began", "skyward.hourly"
SEEN = "skyward.seen"  # of a security group: when its pool's client last said that it lives


def tags(pool: str) -> list[dict[str, str]]:
    """The tags of a pool's resources."""
    values = {
        "Name": f"skyward-{pool}",
        POOL: pool,
        OWNER: Owner.of(os.getpid()).for_people,
        USER: current_user(),
        BEGAN: f"{time.time():.0f}",
    }
    return [{"Key": key, "Value": value} for key, value in values.items()]


def tagged(pool: str, *kinds: str, hourly: float | None = None) -> list[dict[str, Any]]:
    """The TagSpecifications of a call that creates resources of these kinds; instances bear their price as well."""
    price = [] if hourly is None else [{"Key": HOURLY, "Value": f"{hourly:.6f}"}]
    return [{"ResourceType": kind, "Tags": tags(pool) + price * (kind == "instance")} for kind in kinds]


def hourly_of(resource: dict[str, Any]) -> float | None:
    """USD per hour of an instance, as known at its launch; None where nobody knew."""
    return _number(tag(resource, HOURLY))


def seen_of(resource: dict[str, Any]) -> float | None:
    """When a resource's client was last known to live, in seconds since the epoch; None where no tag says so."""
    times = [known for key in (BEGAN, SEEN) if (known := _number(tag(resource, key))) is not None]
    return max(times, default=None)


def pool_of(resource: dict[str, Any]) -> str:
    """The pool a resource belongs to; "" if it is none of ours."""
    return tag(resource, POOL)


def tag(resource: dict[str, Any], key: str) -> str:
    """Value of a resource's tag; "" without it."""
    return next((str(each["Value"]) for each in resource.get("Tags", ()) if each["Key"] == key), "")


def _number(value: str) -> float | None:
    """A tag's number; None for what is none, since anybody in the account may write tags."""
    try:
        return float(value)
    except ValueError:
        return None
