"""The commands: build, up, down."""

from pathlib import Path

from scripts.engine import mounts
from scripts.stand import commands, machine, network, registry
from scripts.stand.place import call, install

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
    """Bring up two nodes; write .kube/kubeconfig."""
    with cluster.locked():
        _install_missing(cluster)
        binary.ensure(cluster)
        commands.bring_up(cluster, lambda: _make(cluster), lambda: _clear(cluster))


def _make(cluster: Cluster) -> None:
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
        call("ip", "route", "add", each.pods, "via", each.address, "dev", cluster.bridge)
        for other in cluster.machines:
            if other.number != each.number:
                call("ip", "-n", each.namespace, "route", "add", other.pods, "via", other.address)
    network.add_rules(_rules(cluster))


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


def _install_missing(cluster: Cluster) -> None:
    bridge = [] if _BRIDGE.exists() else ["containernetworking-plugins"]
    install(cluster, _PROGRAMS, bridge)


def down(cluster: Cluster) -> None:
    """Take the cluster away with all its data; the program stays in the cache."""
    commands.take_down(cluster, lambda: _clear(cluster))


def _clear(cluster: Cluster) -> None:
    """Take everything away but the folder itself and its logs."""
    if "subnet" in cluster.state:
        network.remove_rules(_rules(cluster))
    control.stop(cluster)
    commands.clear(cluster)
    mounts.remove(cluster.pki, cluster.root / "etcd")
    (cluster.root / "api-is-up").unlink(missing_ok=True)
    for each in cluster.machines:
        machine.remove_cgroups(each.cgroup)
