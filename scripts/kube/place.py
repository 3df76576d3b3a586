"""Where the cluster's files lie, and what its nodes are called. Its network is one of the stand's kind."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from scripts.stand.place import CLONE, Host, Stand


@dataclass(frozen=True)
class Machine(Host):
    """One node of a cluster: a host of a stand with a kubelet and containerd instead of an sshd and a Docker engine."""

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

    kind: ClassVar[str] = "kube"
    size: ClassVar[int] = 2

    @property
    def machines(self) -> Sequence[Machine]:
        """The nodes."""
        return [self.host(number) for number in range(1, self.size + 1)]

    def host(self, number: int) -> Machine:
        """The node of that number."""
        return Machine(self, number)

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def hosts_file(self) -> Path:
        return self.kubeconfig

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
    return Cluster(CLONE)
