"""The hosts' network: one bridge on this machine, a namespace and a cable for each host, and a way out."""

import json
import subprocess
from pathlib import Path

from scripts.engine.console import SetupError

from .place import Host, Stand, program

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def up(stand: Stand) -> None:
    """Make bridge, namespaces and cables, and let the hosts reach what this machine reaches."""
    if "subnet" not in stand.state:
        stand.note(subnet=_free_subnet(stand), forwarding=_FORWARDING.read_text().strip())
    _ip("link", "add", stand.bridge, "type", "bridge")
    _ip("addr", "add", f"{stand.gateway}/24", "dev", stand.bridge)
    _ip("link", "set", stand.bridge, "up")
    _FORWARDING.write_text("1")
    for rule in _rules(stand):
        _iptables("-A" if "nat" in rule else "-I", rule)
    for host in stand.hosts:
        _cable(host)


def _cable(host: Host) -> None:
    _ip("netns", "add", host.namespace)
    _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    _ip("link", "set", host.link, "master", host.stand.bridge, "up")
    inside = ("-n", host.namespace)
    _ip(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "link", "set", "eth0", "up")
    _ip(*inside, "route", "add", "default", "via", host.stand.gateway)


def down(stand: Stand) -> None:
    """Take all of it away, also what an interrupted `up` left; what is not there is fine."""
    for host in stand.hosts:
        _ip("link", "del", host.link, check=False)
        _ip("netns", "del", host.namespace, check=False)
    _ip("link", "del", stand.bridge, check=False)
    if "subnet" not in stand.state:
        return
    for rule in _rules(stand):
        while _iptables("-C", rule, check=False) == 0:
            _iptables("-D", rule)
    if not _other_stands(stand):
        _FORWARDING.write_text(stand.state["forwarding"])


def _rules(stand: Stand) -> list[list[str]]:
    net, mark = f"{stand.subnet}.0/24", ["-m", "comment", "--comment", f"skyward-stand-{stand.tag}"]
    return [
        ["-t", "nat", "POSTROUTING", "-s", net, "!", "-d", net, *mark, "-j", "MASQUERADE"],
        ["-t", "filter", "FORWARD", "-s", net, *mark, "-j", "ACCEPT"],
        ["-t", "filter", "FORWARD", "-d", net, *mark, "-j", "ACCEPT"],
    ]


def _iptables(verb: str, rule: list[str], *, check: bool = True) -> int:
    return _call(["iptables", "-w", *rule[:2], verb, *rule[2:]], check=check)


def _ip(*words: str, check: bool = True) -> None:
    _call(["ip", *words], check=check)


def _call(words: list[str], *, check: bool) -> int:
    done = subprocess.run([program(words[0]), *words[1:]], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SetupError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    return done.returncode


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


_ASKED = (("addr",), ("route", "show", "table", "all"))


def _other_stands(stand: Stand) -> bool:
    done = subprocess.run([program("ip"), "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("skyward-")]
    return any(not name.startswith(f"skyward-{stand.tag}-") for name in names)
