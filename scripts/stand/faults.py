"""What can be broken on a host of the stand, and mended again. All of it stays between the stand's own namespaces."""

import time

from scripts.engine.console import SetupError

from . import machine
from .place import Host, call


def link_down(host: Host) -> None:
    """Pull its cable: nothing gets through, and nobody is told."""
    call("ip", "link", "set", host.link, "down")


def link_up(host: Host) -> None:
    """Plug its cable in."""
    call("ip", "link", "set", host.link, "up")


def power_off(host: Host) -> None:
    """Switch it off: the cable is dead before its processes are, so that nobody hears from them."""
    link_down(host)
    machine.power_off(host)


def power_on(host: Host) -> None:
    """Switch it on, and wait until it is up."""
    link_up(host)
    machine.power_on(host)
    machine.wait_up(host)


def kill_sshd(host: Host) -> None:
    """Kill its sshd and all the connections it serves."""
    host.run("pkill", "-KILL", "-x", "sshd", check=False)


def start_sshd(host: Host) -> None:
    """Start its sshd again."""
    machine.start_sshd(host)


def kill_engine(host: Host) -> None:
    """Kill its dockerd; containers go on."""
    host.run("pkill", "-KILL", "-x", "dockerd", check=False)


def start_engine(host: Host) -> None:
    """Start its dockerd again."""
    machine.start_engine(host)


def fill_disk(host: Host, free_mb: int) -> None:
    """Give its engine a disk with so many megabytes, all of them free: a small file system instead of its own."""
    host.run("pkill", "-KILL", "-x", "dockerd", check=False)
    host.run("pkill", "-KILL", "-x", "containerd", check=False)
    host.run("mount", "-t", "tmpfs", "-o", f"size={free_mb}m,mode=711", "tmpfs", "/var/lib/docker")
    machine.start_engine(host)


def free_disk(host: Host) -> None:
    """Take back a `fill_disk`."""
    host.run("pkill", "-KILL", "-x", "dockerd", check=False)
    host.run("pkill", "-KILL", "-x", "containerd", check=False)
    deadline_s = time.monotonic() + 10
    while "tmpfs" in host.run("findmnt", "-n", "-o", "FSTYPE", "/var/lib/docker", check=False).split()[-1:]:
        host.run("umount", "-l", "/var/lib/docker", check=False)
        if time.monotonic() > deadline_s:
            raise SetupError(f"the small disk of {host.name} cannot be taken away.")
    machine.start_engine(host)
