"""The hosts' network: one bridge on this machine, a namespace and a cable for each host, and a way out."""

import json
import subprocess
from pathlib import Path

from scripts.engine.console import SetupError

from .place import Host, Stand, call, program

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_ASKED = (("addr",), ("route", "show", "table", "all"))


def up(stand: Stand) -> None:
    """Make bridge, namespaces and cables, and let the hosts reach what this machine reaches."""
    if "subnet" not in stand.state:
        stand.note(subnet=_free_subnet(stand), forwarding=_FORWARDING.read_text().strip())
    call("ip", "link", "add", stand.bridge, "type", "bridge")
    call("ip", "addr", "add", f"{stand.gateway}/24", "dev", stand.bridge)
    call("ip", "link", "set", stand.bridge, "up")
    _FORWARDING.write_text("1")
    add_rules(_rules(stand))
    for host in stand.hosts:
        _cable(host)


def _cable(host: Host) -> None:
    call("ip", "netns", "add", host.namespace)
    call("ip", "link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    call("ip", "link", "set", host.link, "master", host.stand.bridge, "up")
    inside = ("ip", "-n", host.namespace)
    call(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
    call(*inside, "link", "set", "lo", "up")
    call(*inside, "link", "set", "eth0", "up")
    call(*inside, "route", "add", "default", "via", host.stand.gateway)


def down(stand: Stand) -> None:
    """Take all of it away, also what an interrupted `up` left; what is not there is fine."""
    for host in stand.hosts:
        call("ip", "link", "del", host.link, check=False)
        call("ip", "netns", "del", host.namespace, check=False)
    call("ip", "link", "del", stand.bridge, check=False)
    if "subnet" not in stand.state:
        return
    remove_rules(_rules(stand))
    if not _other_stands(stand):
        _FORWARDING.write_text(stand.state["forwarding"])


def _rules(stand: Stand) -> list[list[str]]:
    net, mark = f"{stand.subnet}.0/24", ["-m", "comment", "--comment", stand.cgroup]
    return [
        ["-t", "nat", "POSTROUTING", "-s", net, "!", "-d", net, *mark, "-j", "MASQUERADE"],
        ["-t", "filter", "FORWARD", "-s", net, *mark, "-j", "ACCEPT"],
        ["-t", "filter", "FORWARD", "-d", net, *mark, "-j", "ACCEPT"],
    ]


def add_rules(rules: list[list[str]]) -> None:
    """Put rules first in their chains."""
    for rule in rules:
        call("iptables", "-w", *rule[:2], "-I", *rule[2:])


def remove_rules(rules: list[list[str]]) -> None:
    """Remove rules as often as they are there."""
    for rule in rules:
        while call("iptables", "-w", *rule[:2], "-C", *rule[2:], check=False) == 0:
            call("iptables", "-w", *rule[:2], "-D", *rule[2:])


def _free_subnet(stand: Stand) -> str:
    """Three numbers of a private network that this machine has no address or route in."""
    answers = (subprocess.run([program("ip"), "-j", *what], capture_output=True, check=True).stdout for what in _ASKED)
    known = "".join(json.dumps(json.loads(answer)) for answer in answers)
    start = int(stand.tag, 16)
    for step in range(256):
        subnet = f"10.77.{(start + step) % 256}"
        if f"{subnet}." not in known:
            return subnet
    raise SetupError("no network 10.77.x.0/24 is free on this machine; take another clone's stand down.")


def _other_stands(stand: Stand) -> bool:
    done = subprocess.run([program("ip"), "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("skyward-")]
    return any(not name.startswith(f"skyward-{stand.tag}-") for name in names)
