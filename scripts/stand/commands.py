"""The commands of the stand, and the order in which the clusters go up and down too."""

import json
import os
import time
from collections.abc import Callable

from scripts.engine import mounts
from scripts.engine.console import SetupError, say

from . import machine, network, registry
from .place import Stand, install

_PROGRAMS = {"sshd": "openssh-server", "ip": "iproute2", "iptables": "iptables", "tini": "tini", "dockerd": "docker.io"}


def bring_up(stand: Stand, make: Callable[[], None], clear: Callable[[], None]) -> None:
    """Make everything that a stand consists of, and leave its file of facts. Does nothing if it runs."""
    if stand.hosts_file.exists() and all(host.init is not None for host in stand.machines):
        say(f"{len(stand.machines)} machines are up already, see {stand.hosts_file}")
        return
    if os.geteuid() != 0:
        raise SetupError("namespaces and mounts take root; run this again as root.")
    started_s = time.monotonic()
    clear()
    try:
        make()
    except BaseException:
        clear()
        raise
    say(f"{len(stand.machines)} machines are up after {time.monotonic() - started_s:.1f} s; see {stand.hosts_file}")


def take_down(stand: Stand, clear: Callable[[], None]) -> None:
    """Take everything away with all its data."""
    if not stand.root.is_dir():
        say(f"nothing to take away: there is no .{stand.kind} folder")
        return
    with stand.locked():
        clear()
        mounts.remove(stand.root)
    say(f"taken away; nothing of .{stand.kind} is left")


def up(stand: Stand) -> None:
    """Bring up three hosts; write .stand/hosts.json."""
    with stand.locked():
        install(stand, _PROGRAMS)
        bring_up(stand, lambda: _make(stand), lambda: clear(stand))


def _make(stand: Stand) -> None:
    machine.make_key(stand.key, "skyward-stand")
    network.up(stand)
    for host in stand.hosts:
        machine.prepare(host)
        machine.power_on(host)
    registry.up(stand)
    for host in stand.hosts:
        machine.wait_up(host)
    keys = [(host.address, (host.folder / "boot" / "host_key.pub").read_text().split()) for host in stand.hosts]
    stand.known_hosts.write_text("".join(f"{address} {kind} {key}\n" for address, (kind, key, _) in keys))
    found = {
        "hosts": [host.login for host in stand.hosts],
        "key": str(stand.key),
        "known_hosts": str(stand.known_hosts),
    }
    stand.hosts_file.write_text(json.dumps(found, indent=2) + "\n")


def down(stand: Stand) -> None:
    """Take the hosts away with all their data, and those of test processes that were killed."""
    for nested in stand.root.glob("*/.stand"):
        down(Stand(nested.parent))
    take_down(stand, lambda: clear(stand))


def clear(stand: Stand) -> None:
    """Take everything away but the stand's own folder."""
    stand.hosts_file.unlink(missing_ok=True)
    for host in stand.machines:
        machine.power_off(host)
    registry.down(stand)
    network.down(stand)
    mounts.remove(*(host.folder for host in stand.machines))
    machine.remove_cgroups(stand.cgroup)
    stand.state_file.unlink(missing_ok=True)
