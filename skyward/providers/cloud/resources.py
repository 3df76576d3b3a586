"""Everything that exists of pools at a cloud, found by tags alone, and its removal."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from skyward.errors import ProviderError
from skyward.model.resource import Resource
from skyward.providers.cloud.protocol import Cloud, Instance
from skyward.system import time

_log = logging.getLogger(__name__)
_FORGOTTEN_S = 3600.0  # since the last sign of life; the reaper of a dead client tries for an hour as well
_ENDED_WITHIN_S = 300.0  # large machines take minutes to end
_POLL_S = 2.0
_POLL_AFTER_REQUEST_S = 0.2


def find(cloud: Cloud) -> Sequence[Resource]:
    """All machines of all pools in the form of `Provider.find`; what is left without machines has the node -1."""
    instances = cloud.instances()
    pools = {each.pool for each in instances if each.state != "ended"}
    machines = [_describe(each) for each in instances if each.exists]
    return machines + [each for each in cloud.others() if each["pool"] not in pools]


def sweep(cloud: Cloud) -> None:
    """Remove what dead pools have left: they have no machine that runs, and no client has renewed them for an hour.

    A pool that has lost all its machines and waits for others has something without machines as well, for any length
    of time, but its client renews that. Clocks agree well enough: clouds refuse requests of a clock that is minutes
    wrong. What does not say when it was seen is left alone. A failure is logged as a warning, since the pool that is
    being opened does not depend on it.
    """
    old = [each for each in cloud.others() if (seen := each.get("seen")) and time.time() - seen > _FORGOTTEN_S]
    machines = [each for each in cloud.instances() if each.state != "ended"] if old else []
    in_use = {each.pool for each in machines if each.state != "stopped"}
    for each in old:
        pool, name = each["pool"], each["name"]
        if pool in in_use:
            continue
        try:
            if stopped := [machine.id for machine in machines if machine.pool == pool]:
                cloud.terminate(stopped)
            cloud.remove(name)
        except ProviderError as error:
            _log.warning("The %s %s of pool %s could not be deleted: %s", each["state"], name, pool, error)


def _describe(instance: Instance) -> Resource:
    hours = max(0.0, time.time() - instance.launched) / 3600
    return {
        "pool": instance.pool,
        "node": instance.index,
        "name": instance.id,
        "state": instance.state,
        "owner": instance.owner,
        "user": instance.user,
        "type": instance.type,
        "market": instance.market,
        "host": instance.address,
        "hourly": instance.hourly,
        "cost": None if instance.hourly is None else instance.hourly * hours,
    }


def destroy(cloud: Cloud, pool: str) -> None:
    """End all machines of a pool, wait until they are gone, and remove what is left. Idempotent.

    A launch may be under way in another process. Its machines need what is left, such as a security group: either they
    cannot start any more, or that cannot be removed yet, and the machines are found when they are looked for again.

    Raises:
        ProviderError: the cloud refuses, or machines do not end in time; the message says what is left.
    """
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while True:
        _end_machines(cloud, pool, deadline)
        in_use = [each for each in cloud.others(pool) if not cloud.remove(each["name"])]
        if not in_use:
            return
        if time.monotonic() > deadline:
            names = ", ".join(f"{each['state']} {each['name']}" for each in in_use)
            raise ProviderError(f"The machines of pool {pool} have ended, but {cloud.name} still uses {names}.")
        time.sleep(_POLL_S)


def _end_machines(cloud: Cloud, pool: str, deadline: float) -> None:
    while left := [each for each in cloud.instances(pool) if each.state != "ended"]:
        if time.monotonic() > deadline:
            names = ", ".join(f"{each.id} ({each.state})" for each in left)
            raise ProviderError(f"Machines of pool {pool} have not ended within {_ENDED_WITHIN_S:g} s: {names}.")
        running = [each.id for each in left if each.exists]
        if running:
            cloud.terminate(running)
        time.sleep(_POLL_AFTER_REQUEST_S if running else _POLL_S)
