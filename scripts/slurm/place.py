"""What the machines of the Slurm cluster are called. Its network is one of the stand's kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from scripts.stand.place import CLONE, Host, Stand

ROOT = "/mnt"  # where the machines of the cluster see its folder: the shared disk
SSH_PORT = 2222  # this machine may have an sshd of its own
USERS = {"alice": 20001, "bob": 20002}


@dataclass(frozen=True)
class Machine(Host):
    """The login node, number 0, or a compute node, from 1 on."""

    @property
    def name(self) -> str:
        """Its host name, and its name in Slurm."""
        return f"n{self.number}" if self.number else "login"

    @property
    def namespace(self) -> str:
        """Name of its network namespace; "" for the login node, which has this machine's network."""
        return super().namespace if self.number else ""

    @property
    def address(self) -> str:
        return super().address if self.number else self.stand.gateway

    @property
    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": f"{ROOT}/etc/slurm.conf"}


@dataclass(frozen=True)
class Cluster(Stand):
    """The Slurm cluster of one clone."""

    kind: ClassVar[str] = "slurm"
    homes: ClassVar[str] = f"{ROOT}/home"

    @property
    def key(self) -> Path:
        """The private key with which alice and bob log in."""
        return self.root / "keys" / "key"

    @property
    def known_hosts(self) -> Path:
        return self.root / "keys" / "known_hosts"

    @property
    def hosts_file(self) -> Path:
        """What tests and people need: login, key, known_hosts."""
        return self.root / "cluster.json"

    @property
    def login(self) -> Host:
        """The login node, where the controller runs as well."""
        return self.host(0)

    @property
    def machines(self) -> Sequence[Host]:
        return [self.login, *self.hosts]

    def host(self, number: int) -> Host:
        return Machine(self, number)


def here() -> Cluster:
    """Return the cluster of the clone that this file lies in."""
    return Cluster(CLONE)
