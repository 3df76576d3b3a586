"""The commands: up, down."""

import contextlib
import json
import os
import time
from pathlib import Path

from scripts.engine import mounts

from . import machine, network, registry
from .place import Stand, install

_PROGRAMS = {"sshd": "openssh-server", "ip": "iproute2", "iptables": "iptables", "tini": "tini", "dockerd": "docker.io"}


def up(stand: Stand) -> None:
    """Bring up three hosts and leave `.stand/hosts.json`. Does nothing if they run."""
    started_s = time.monotonic()
    with stand.locked():
        if stand.hosts_file.exists() and all(host.init is not None for host in stand.hosts):
            _say(f"{len(stand.hosts)} hosts are up already, see {stand.hosts_file}")
            return
        install(stand.engine, _PROGRAMS, "the stand")
        _clear(stand)
        try:
            _bring_up(stand)
        except BaseException:
            _clear(stand)
            raise
    _say(f"{len(stand.hosts)} hosts are up after {time.monotonic() - started_s:.1f} s; see {stand.hosts_file}")


def _bring_up(stand: Stand) -> None:
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
    if not stand.root.is_dir():
        _say("nothing to take away: there is no .stand folder")
        return
    for nested in stand.root.glob("*/.stand"):
        down(Stand(nested.parent))
    started_s = time.monotonic()
    with stand.locked():
        _clear(stand)
        mounts.remove(stand.root)
    _say(f"taken away after {time.monotonic() - started_s:.1f} s; nothing is left")


def _clear(stand: Stand) -> None:
    """Take everything away but the folder itself."""
    stand.hosts_file.unlink(missing_ok=True)
    for host in stand.hosts:
        machine.power_off(host)
    registry.down(stand)
    network.down(stand)
    mounts.remove(*(host.folder for host in stand.hosts))
    places = [Path(place) for place, _, _ in os.walk("/sys/fs/cgroup")]  # which passes over those that end meanwhile
    for top in (place for place in places if place.name == stand.cgroup):
        folders = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for folder in (*folders, top):
            with contextlib.suppress(OSError):  # a process that is just ending
                folder.rmdir()
    stand.state_file.unlink(missing_ok=True)


def _say(line: str) -> None:
    print(f"stand: {line}", flush=True)
