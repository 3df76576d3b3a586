"""The commands: build, up, down."""

import contextlib
import subprocess
import time
from pathlib import Path

from scripts.engine import mounts
from scripts.engine.console import SetupError
from scripts.stand import machine, network, registry
from scripts.stand.place import install, program

from . import binary, control, node
from .place import Cluster

_PROGRAMS = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ip": "iproute2",
    "iptables": "iptables",
    "tini": "tini",
    "openssl": "openssl",
    "kubectl": "kubernetes-client",
}
_BRIDGE = Path("/usr/lib/cni/bridge")  # of containernetworking-plugins


def build(cluster: Cluster) -> None:
    """Install the packages and build the program, unless that has been done."""
    with cluster.locked():
        _install_missing(cluster)
        binary.ensure(cluster)


def up(cluster: Cluster) -> None:
    """Bring up two nodes and leave `.kube/kubeconfig`. Does nothing if they run."""
    with cluster.locked():
        if cluster.kubeconfig.exists() and all(each.init is not None for each in cluster.machines):
            _say(f"{len(cluster.machines)} nodes are up already, see {cluster.kubeconfig}")
            return
        _install_missing(cluster)
        binary.ensure(cluster)
        _clear(cluster)
        started_s = time.monotonic()
        try:
            _bring_up(cluster)
        except BaseException:
            _clear(cluster)
            raise
    _say(f"{len(cluster.machines)} nodes are up after {time.monotonic() - started_s:.1f} s; see {cluster.kubeconfig}")


def _bring_up(cluster: Cluster) -> None:
    network.up(cluster)
    control.make_keys(cluster)
    control.start(cluster)
    _routes(cluster)
    for each in cluster.machines:
        node.prepare(each, f"{cluster.gateway}:5000")
        node.power_on(each)
    registry.up(cluster)
    control.wait_up(cluster)
    (cluster.root / "api-is-up").touch()
    control.wait_ready(cluster)
    control.write_kubeconfig(cluster, "admin", cluster.kubeconfig)


def _routes(cluster: Cluster) -> None:
    """Ways to the pods of each node, and from pods to the API server by the address of its service."""
    for each in cluster.machines:
        _call("ip", "route", "add", each.pods, "via", each.address, "dev", cluster.bridge)
        for other in cluster.machines:
            if other.number != each.number:
                _call("ip", "-n", each.namespace, "route", "add", other.pods, "via", other.address)
    for rule in _rules(cluster):
        _call("iptables", "-w", *rule[:2], "-I", *rule[2:])


def _rules(cluster: Cluster) -> list[list[str]]:
    """There is no kube-proxy: the one service is the API server's, and pods reach it through this machine."""
    mark = ["-m", "comment", "--comment", f"skyward-kube-{cluster.tag}"]
    rules = []
    for each in cluster.machines:
        api = ["-s", each.pods, "-d", "10.96.0.1", "-p", "tcp", "--dport", "443", *mark]
        to = f"{cluster.gateway}:{cluster.port}"
        rules.append(["-t", "nat", "PREROUTING", *api, "-j", "DNAT", "--to-destination", to])
        rules.append(["-t", "filter", "FORWARD", "-s", each.pods, *mark, "-j", "ACCEPT"])
        rules.append(["-t", "filter", "FORWARD", "-d", each.pods, *mark, "-j", "ACCEPT"])
    return rules


def _call(*words: str) -> None:
    done = subprocess.run([program(words[0]), *words[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


def _is_there(rule: list[str]) -> bool:
    words = [program("iptables"), "-w", *rule[:2], "-C", *rule[2:]]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _install_missing(cluster: Cluster) -> None:
    bridge = [] if _BRIDGE.exists() else ["containernetworking-plugins"]
    install(cluster.engine, _PROGRAMS, "Kubernetes", bridge)


def down(cluster: Cluster) -> None:
    """Take the cluster away with all its data."""
    if not cluster.root.is_dir():
        _say("nothing to take away: there is no .kube folder")
        return
    started_s = time.monotonic()
    with cluster.locked():
        _clear(cluster)
        mounts.remove(cluster.root)
    _say(f"taken away after {time.monotonic() - started_s:.1f} s; nothing is left")


def _clear(cluster: Cluster) -> None:
    """Take everything away but the folder itself and its logs."""
    cluster.kubeconfig.unlink(missing_ok=True)
    for each in cluster.machines:
        machine.power_off(each)
    control.stop(cluster)
    registry.down(cluster)
    if "subnet" in cluster.state:
        for rule in _rules(cluster):
            while _is_there(rule):
                _call("iptables", "-w", *rule[:2], "-D", *rule[2:])
    network.down(cluster)
    mounts.remove(*(each.folder for each in cluster.machines), cluster.pki, cluster.root / "etcd")
    (cluster.root / "api-is-up").unlink(missing_ok=True)
    for each in cluster.machines:
        for top in Path("/sys/fs/cgroup").glob(f"*/{each.cgroup}"):
            folders = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
            for folder in (*folders, top):
                with contextlib.suppress(OSError):  # a process that is just ending
                    folder.rmdir()
    cluster.state_file.unlink(missing_ok=True)


def _say(line: str) -> None:
    print(f"kube: {line}", flush=True)
