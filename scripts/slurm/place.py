"""Where the cluster's files lie, and what its machines are called: all of it follows from the clone and one subnet."""

import fcntl
import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.engine.console import SetupError
from scripts.engine.daemon import daemon_path
from scripts.engine.place import Place

NODES = 3
ROOT = "/mnt"  # where the machines of the cluster see its folder: the shared disk
SSH_PORT = 2222  # this machine may have an sshd of its own
USERS = {"alice": 20001, "bob": 20002}


@dataclass(frozen=True)
class Machine:
    """The login node, number 0, or a compute node, from 1 on.

    Attributes:
        cluster: what it belongs to.
        number: of the machine.
    """

    cluster: "Cluster"
    number: int

    @property
    def name(self) -> str:
        """Its host name, and its name in Slurm."""
        return f"n{self.number}" if self.number else "login"

    @property
    def namespace(self) -> str | None:
        """Name of its network namespace; None for the login node, which has this machine's network."""
        return f"skyward-slurm-{self.cluster.tag}-{self.number}" if self.number else None

    @property
    def link(self) -> str:
        """The end of its cable at this machine."""
        return f"sls{self.cluster.tag}.{self.number}"

    @property
    def address(self) -> str:
        """Its IP address."""
        return f"{self.cluster.subnet}.{10 + self.number if self.number else 1}"

    @property
    def outer(self) -> int | None:
        """The process that holds its namespaces; None while it is off. A number that has been used again is not it."""
        try:
            pid = int((self.cluster.root / "run" / f"{self.name}.outer").read_text())
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if f"FOLDER={self.cluster.root}".encode() in variables else None

    @property
    def init(self) -> int | None:
        """Its process 1, as this machine numbers it; None while it is off."""
        outer = self.outer
        try:
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def command(self, *words: str, user: str = "root") -> list[str]:
        """The command line that runs a command on it, as this user.

        Raises:
            SetupError: the machine is off.
        """
        init = self.init
        if init is None:
            raise SetupError(f"{self.name} is off.")
        home = "/root" if user == "root" else f"{ROOT}/home/{user}"
        who = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        env = ["env", f"HOME={home}", f"USER={user}", f"SLURM_CONF={ROOT}/etc/slurm.conf", f"PATH={daemon_path()}"]
        return ["nsenter", "--all", f"--target={init}", "--", *env, *who, *words]

    def run(self, *words: str, user: str = "root", check: bool = True) -> str:
        """Run a command on it; what it prints.

        Raises:
            SetupError: the machine is off, or the command fails and `check` is true.
        """
        done = subprocess.run(
            self.command(*words, user=user), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if check and done.returncode:
            raise SetupError(f"{words[0]} on {self.name} failed with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout


@dataclass(frozen=True)
class Cluster:
    """The Slurm cluster of one clone."""

    clone: Path

    @property
    def root(self) -> Path:
        """The folder of everything, which its machines see as their shared disk."""
        return self.clone / ".slurm"

    @property
    def engine(self) -> Place:
        """Where logs of installations go: the folder of `make engine`."""
        return Place((self.clone / ".engine").resolve().parent)

    @property
    def tag(self) -> str:
        """Six characters that tell this clone's interfaces and namespaces from another's."""
        return hashlib.sha256(str(self.clone).encode()).hexdigest()[:6]

    @property
    def bridge(self) -> str:
        return f"sls{self.tag}"

    @property
    def key(self) -> Path:
        """The private key with which alice and bob log in."""
        return self.root / "keys" / "key"

    @property
    def known_hosts(self) -> Path:
        return self.root / "keys" / "known_hosts"

    @property
    def facts_file(self) -> Path:
        """What tests and people need: login, key, known_hosts. It is there while the cluster is up."""
        return self.root / "cluster.json"

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def subnet(self) -> str:
        """The first three numbers of all addresses."""
        return str(json.loads(self.state_file.read_text())["subnet"])

    @property
    def facts(self) -> dict[str, Any]:
        """The content of `facts_file`."""
        return dict(json.loads(self.facts_file.read_text()))

    @property
    def login(self) -> Machine:
        """The login node, where the controller runs as well."""
        return Machine(self, 0)

    @property
    def nodes(self) -> list[Machine]:
        """The compute nodes."""
        return [Machine(self, number) for number in range(1, NODES + 1)]

    @property
    def machines(self) -> list[Machine]:
        return [self.login, *self.nodes]

    def log(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cluster for one command; a second command waits here."""
        self.root.mkdir(exist_ok=True)
        with (self.root / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def here() -> Cluster:
    """Return the cluster of the clone that this file lies in."""
    return Cluster(Path(__file__).resolve().parents[2])
