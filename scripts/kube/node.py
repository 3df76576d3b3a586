"""One node as processes and mounts: containerd, the network of its pods, and the kubelet."""

import json
from pathlib import Path

from scripts.stand import machine

from . import binary, pause
from .place import Cluster, Machine

_CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/run/containerd"
oom_score = 0
[grpc]
  address = "{folder}/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/network"
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."{registry}"]
    endpoint = ["http://{registry}"]
"""
# Runs in namespaces of its own, on this machine's root. A kubelet that ends is started again, as an init would.
_BOOT = r"""
set -e
mount --make-rprivate /
mount -t proc proc /proc
hostname "$NAME"
mkdir -p /var/lib/kubelet
mount --bind "$FOLDER/log" /var/log
mount --bind "$FOLDER/kubelet" /var/lib/kubelet
mount --make-shared /var/lib/kubelet
mount -t tmpfs tmpfs /run/netns
echo 1 > /proc/sys/net/ipv4/ip_forward
ip route replace unreachable 169.254.0.0/16
exec "$TINI" -s -- sh "$FOLDER/start"
"""
_START = r"""
containerd -c "$FOLDER/containerd.toml" &
ctr="ctr --address $FOLDER/run/containerd.sock --namespace k8s.io"
until $ctr version >/dev/null 2>&1; do sleep 0.05; done
$ctr images import "$FOLDER/pause.tar" >/dev/null
touch "$FOLDER/engine-is-up"
while :; do
  [ -e "$READY" ] && "$KUBELET" --config="$FOLDER/kubelet.json" --kubeconfig="$KUBECONFIG" --hostname-override="$NAME" \
    --node-ip="$ADDRESS" --container-runtime=remote --root-dir=/var/lib/kubelet --cert-dir="$FOLDER/kubelet-pki" \
    --container-runtime-endpoint="unix://$FOLDER/run/containerd.sock" --containerd="$FOLDER/run/containerd.sock" \
    --volume-plugin-dir="$FOLDER/plugins" --v=1 || :
  sleep 0.1
done
"""
_CGROUPS = Path("/sys/fs/cgroup")


def prepare(node: Machine, registry: str) -> None:
    """Make its folder and its configuration."""
    cluster, folder = node.stand, node.folder
    assert isinstance(cluster, Cluster)
    for name in ("containerd", "run", "kubelet", "log", "network", "addresses", "plugins"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    pause.write(folder / "pause.tar")
    settings = _CONTAINERD.format(folder=folder, pause=pause.NAME, registry=registry)
    (folder / "containerd.toml").write_text(settings)
    (folder / "network" / "10-bridge.conflist").write_text(json.dumps(_network(node)))
    (folder / "kubelet.json").write_text(json.dumps(_kubelet(cluster, node), indent=2))
    (folder / "start").write_text(_START)
    _make_cgroups(node)


def _network(node: Machine) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(node.folder / "addresses"),
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}]}


def _kubelet(cluster: Cluster, node: Machine) -> dict[str, object]:
    pki = cluster.pki
    authority = str(pki / "ca.crt")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": authority},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "3s",
        "nodeLeaseDurationSeconds": 10,
        "syncFrequency": "10s",
        "evictionHard": {},
        "volumeStatsAggPeriod": "3s",  # how late a full volume is noticed
        "imageGCHighThresholdPercent": 100,  # else images go when others fill the disk
        "imageGCLowThresholdPercent": 99,
        "resolvConf": "",
        "maxPods": 50,
    }


def _make_cgroups(node: Machine) -> None:
    """The parent of its pods in every hierarchy of control groups, version 1."""
    for hierarchy in _CGROUPS.iterdir():
        if not hierarchy.is_dir() or hierarchy.is_symlink() or not (hierarchy / "cgroup.procs").exists():
            continue
        parent = hierarchy / node.cgroup
        parent.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (parent / name).exists():
                (parent / name).write_text((hierarchy / name).read_text())


def power_on(node: Machine) -> None:
    """Start it; does not wait. Nothing happens if it runs."""
    cluster = node.stand
    assert isinstance(cluster, Cluster)
    machine.launch(
        node,
        _BOOT,
        cluster.log(node.name),
        KUBELET=str(binary.folder() / "kubelet"),
        KUBECONFIG=str(cluster.pki / f"{node.name}.kubeconfig"),
        READY=str(cluster.root / "api-is-up"),
    )


def kill_kubelet(node: Machine) -> None:
    """Kill its kubelet, which is started again at once; its pods go on."""
    node.run("pkill", "-KILL", "-x", "kubelet")
