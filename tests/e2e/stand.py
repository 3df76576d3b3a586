"""Three Docker hosts for the tests that ask for them: brought up with the first, taken away after the last."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from scripts.stand import commands
from scripts.stand.place import Host, Stand, here
from tests.waiting import wait_until as wait_until  # for who asks for the stand

# One image for all of them, as small as can be: every host keeps a copy.
IMAGE = sky.Image()


@pytest.fixture(scope="session")
def stand() -> Iterator[Stand]:
    """The stand of this clone; one that somebody has brought up before is used and left as it is."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("the stand makes network namespaces and mounts, which takes root on Linux")
    found = _stand_of_process()
    was_up = found.hosts_file.exists()
    commands.up(found)
    yield found
    if not was_up:
        commands.down(found)


def _stand_of_process() -> Stand:
    """This clone's stand; in a process of pytest-xdist one of its own, which uses the clone's engine and registry."""
    found = here()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return found
    own = Stand(found.root / worker)
    own.clone.mkdir(parents=True, exist_ok=True)
    engine = own.clone / ".engine"
    engine.unlink(missing_ok=True)
    engine.symlink_to(found.clone / ".engine")
    return own


@pytest.fixture
def ssh(stand: Stand) -> Callable[..., sky.SSH]:
    """Make a provider of the stand's hosts, exactly as `.stand/hosts.json` says."""
    facts = json.loads(stand.hosts_file.read_text())

    def make(*numbers: int, **settings: Any) -> sky.SSH:
        hosts = [facts["hosts"][number - 1] for number in numbers or (1, 2, 3)]
        return sky.SSH(*hosts, **{"key": facts["key"], "known_hosts": facts["known_hosts"], **settings})

    return make


@pytest.fixture
def clean(stand: Stand) -> Iterator[Callable[[float], None]]:
    """Asserts that no host has anything left of any pool; at the end of each test that asks for it, too."""

    def check(within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while found := {host.name: left_on(host) for host in stand.hosts if left_on(host)}:
            assert time.monotonic() < deadline, f"left after {within_s:g} s: {found}"
            time.sleep(0.3)

    yield check
    check(30)


def left_on(host: Host, pool: str = "") -> list[str]:
    """Containers and directories of a pool, or of any, on a host, seen past its sshd. Claimed ports are in these."""
    label = f"label=skyward.pool={pool}" if pool else "label=skyward.pool"
    containers = host.run("docker", "ps", "-aq", "--filter", label, check=False).split()
    return containers + directories_on(host, pool)


def directories_on(host: Host, pool: str = "") -> list[str]:
    """What watchdogs of whichever user have made on a host, for a pool or any."""
    users = ("/root/.cache", "/home/*/.cache", "/run/user/*", "/run/skyward/*")
    places = " ".join(f"{user}{'/skyward' if 'run/skyward' not in user else ''}/pools/{pool}*" for user in users)
    return host.run("sh", "-c", f"exec 2>/dev/null; ls -d {places} /tmp/.skyward*", check=False).split()


def forget_image(host: Host, repository: str) -> None:
    """Remove all images of a repository from a host."""
    tags = host.run("docker", "images", "-q", repository).split()
    if tags:
        host.run("docker", "rmi", "-f", *dict.fromkeys(tags))
