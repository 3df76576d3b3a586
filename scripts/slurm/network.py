"""The cluster's network: one bridge on this machine, a namespace and a cable for each compute node."""

import json
import subprocess

from scripts.engine.console import SetupError
from scripts.stand.place import program

from .place import Cluster, Machine


def up(cluster: Cluster) -> None:
    """Choose a subnet, and make bridge, namespaces and cables."""
    cluster.state_file.write_text(json.dumps({"subnet": _free_subnet(cluster)}))
    _ip("link", "add", cluster.bridge, "type", "bridge")
    _ip("addr", "add", f"{cluster.login.address}/24", "dev", cluster.bridge)
    _ip("link", "set", cluster.bridge, "up")
    for machine in cluster.nodes:
        cable(machine)


def cable(machine: Machine) -> None:
    """The namespace of a compute node, and its cable to the bridge."""
    namespace = str(machine.namespace)
    _ip("netns", "add", namespace)
    _ip("link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _ip("link", "set", machine.link, "master", machine.cluster.bridge, "up")
    _ip("-n", namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "link", "set", "eth0", "up")
    _ip("-n", namespace, "route", "add", "default", "via", machine.cluster.login.address)


def down(cluster: Cluster) -> None:
    """Take all of it away, also what an interrupted `up` left; what is not there is fine."""
    for machine in cluster.nodes:
        _ip("link", "del", machine.link, check=False)
        _ip("netns", "del", str(machine.namespace), check=False)
    _ip("link", "del", cluster.bridge, check=False)


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run([program("ip"), *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SetupError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def _free_subnet(cluster: Cluster) -> str:
    """Three numbers of a private network that this machine has no address or route in."""
    asked = (("addr",), ("route", "show", "table", "all"))
    known = "".join(
        subprocess.run([program("ip"), *what], capture_output=True, check=True, text=True).stdout for what in asked
    )
    start = int(cluster.tag, 16)
    for step in range(256):
        subnet = f"10.91.{(start + step) % 256}"
        if f"{subnet}." not in known:
            return subnet
    raise SetupError("no network 10.91.x.0/24 is free on this machine; take another clone's cluster down.")
