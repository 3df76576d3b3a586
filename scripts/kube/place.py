"""Where the cluster's files lie, and what its nodes are called. Its network is one of the stand's kind."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from scripts.stand.place import Host, Stand

NODES = 2


@dataclass(frozen=True)
class Machine(Host):
    """One node of a cluster: a host of a stand with a kubelet and containerd instead of an sshd and a Docker engine."""

    @property
    def name(self) -> str:
        """Its host name, and its name in the cluster."""
        return f"kube{self.number}"

    @property
    def cgroup(self) -> str:
        """Parent of the control groups of its pods."""
        return f"{self.stand.cgroup}-{self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods: each node has one half of 10.79.x.0/24."""
        third = self.stand.subnet.rpartition(".")[2]
        return f"10.79.{third}.{128 * (self.number - 1)}/25"


@dataclass(frozen=True)
class Cluster(Stand):
    """The Kubernetes of one clone."""

    @property
    def root(self) -> Path:
        return self.clone / ".kube"

    @property
    def tag(self) -> str:
        """Six characters that tell this cluster's interfaces and namespaces from others'."""
        return hashlib.sha256(f"kube {self.clone}".encode()).hexdigest()[:6]

    @property
    def cgroup(self) -> str:
        return f"skyward-kube-{self.tag}"

    @property
    def hosts(self) -> list[Host]:
        return [self.host(number) for number in range(1, NODES + 1)]

    @property
    def machines(self) -> list[Machine]:
        """The nodes."""
        return [self.host(number) for number in range(1, NODES + 1)]

    def host(self, number: int) -> Machine:
        """The node of that number."""
        return Machine(self, number)

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; it is there when the cluster is up."""
        return self.root / "kubeconfig"

    @property
    def port(self) -> int:
        """Where the API server listens, at the gateway's address. etcd has the two ports after it, on loopback."""
        return 16_000 + int(self.tag, 16) % 1000 * 3

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://{self.gateway}:{self.port}"


def cache() -> Path:
    """Where programs are kept that are built once per user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "skyward" / "kubernetes"


def here() -> Cluster:
    """Return the cluster of the clone that this file lies in."""
    return Cluster(Path(__file__).resolve().parents[2])
