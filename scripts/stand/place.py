"""Where the files of a stand or cluster lie, and what its machines are called: all of it follows from the clone."""

import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from scripts.engine import debian
from scripts.engine.console import SetupError
from scripts.engine.daemon import daemon_path
from scripts.engine.place import Place


@dataclass(frozen=True)
class Host:
    """One machine: a host of the stand, or a node of a cluster.

    Attributes:
        stand: what it belongs to.
        number: from 1 on.
    """

    stand: "Stand"
    number: int

    @property
    def name(self) -> str:
        """Its host name."""
        return f"{self.stand.kind}{self.number}"

    @property
    def folder(self) -> Path:
        """Everything of it that lies on the machine's disk."""
        return self.stand.root / self.name

    @property
    def namespace(self) -> str:
        """Name of its network namespace; "" if it has this machine's network."""
        return f"skyward-{self.stand.tag}-{self.number}"

    @property
    def link(self) -> str:
        """The machine's end of its cable."""
        return f"sky{self.stand.tag}.{self.number}"

    @property
    def address(self) -> str:
        """Its IP address."""
        return f"{self.stand.subnet}.{10 + self.number}"

    @property
    def login(self) -> str:
        """What `sky.SSH` takes."""
        return f"root@{self.address}"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of commands that are run on it."""
        return {}

    @property
    def init(self) -> int | None:
        """Its process 1, as this machine numbers it; None while it is off."""
        outer = self.outer
        try:
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    @property
    def outer(self) -> int | None:
        """The process that holds its namespaces; None while it is off. A number that has been used again is not it."""
        try:
            pid = int((self.folder / "pid").read_text())
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if f"FOLDER={self.folder}".encode() in variables else None

    def command(self, *words: str, user: str = "root") -> list[str]:
        """Return the command line that runs a command on it as this user, past its sshd.

        Raises:
            SetupError: the host is off.
        """
        init = self.init
        if init is None:
            raise SetupError(f"{self.name} is off.")
        home = "/root" if user == "root" else f"{self.stand.homes}/{user}"
        who = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        variables = {"PATH": daemon_path(), "HOME": home, "USER": user, "LANG": "C.UTF-8", **self.variables}
        env = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        return [program("nsenter"), "--all", f"--target={init}", "--", *env, *who, *words]

    def run(self, *words: str, user: str = "root", check: bool = True) -> str:
        """Run a command on it; what it prints.

        Raises:
            SetupError: the host is off, or the command fails and `check` is true.
        """
        done = subprocess.run(
            self.command(*words, user=user), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if check and done.returncode:
            raise SetupError(f"{words[0]} on {self.name} failed with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout


@dataclass(frozen=True)
class Stand:
    """The stand of one clone; the clusters are made of the same parts."""

    clone: Path
    kind: ClassVar[str] = "stand"
    size: ClassVar[int] = 3
    homes: ClassVar[str] = "/home"

    @property
    def root(self) -> Path:
        return self.clone / f".{self.kind}"

    @property
    def engine(self) -> Place:
        """Where the engine and the registry of `make engine` are, for a clone that links to another's `.engine` too."""
        return Place((self.clone / ".engine").resolve().parent)

    @property
    def tag(self) -> str:
        """Six characters that tell its interfaces and namespaces from those of others."""
        return hashlib.sha256(f"{self.kind} {self.clone}".encode()).hexdigest()[:6]

    @property
    def bridge(self) -> str:
        return f"sky{self.tag}"

    @property
    def cgroup(self) -> str:
        """Parent of all control groups that the hosts' engines make."""
        return f"skyward-{self.kind}-{self.tag}"

    @property
    def key(self) -> Path:
        return self.root / "key"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def hosts_file(self) -> Path:
        """What tests and people need to reach it. It exists while everything is up."""
        return self.root / "hosts.json"

    @property
    def facts(self) -> dict[str, Any]:
        """The content of `hosts_file`."""
        return dict(json.loads(self.hosts_file.read_text()))

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def state(self) -> dict[str, Any]:
        """What `up` has noted for `down`: subnet, what the machine's settings were, the registry's address."""
        try:
            return dict(json.loads(self.state_file.read_text()))
        except FileNotFoundError:
            return {}

    def note(self, **facts: Any) -> None:
        """Add to the state."""
        draft = self.state_file.with_suffix(".draft")
        draft.write_text(json.dumps({**self.state, **facts}))
        draft.replace(self.state_file)

    @property
    def subnet(self) -> str:
        """The first three numbers of all addresses."""
        return str(self.state["subnet"])

    @property
    def gateway(self) -> str:
        """Address of this machine in the hosts' network."""
        return f"{self.subnet}.1"

    @property
    def registry(self) -> str | None:
        """Address of a registry that the hosts reach, None where `make engine` has none."""
        return self.state.get("registry")

    @property
    def hosts(self) -> Sequence[Host]:
        """The machines that have a cable."""
        return [self.host(number) for number in range(1, self.size + 1)]

    @property
    def machines(self) -> Sequence[Host]:
        """Everything that can be switched on."""
        return self.hosts

    def host(self, number: int) -> Host:
        """The host of that number."""
        return Host(self, number)

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stand for one command; a second command waits here."""
        self.root.mkdir(exist_ok=True)
        with (self.root / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def program(name: str) -> str:
    """Path of a program of the system.

    Raises:
        SetupError: it is not installed.
    """
    found = shutil.which(name, path=daemon_path())
    if found is None:
        raise SetupError(f"the program {name} is not installed.")
    return found


def call(*words: str, check: bool = True) -> int:
    """Run a program of the system; its status.

    Raises:
        SetupError: it fails and `check` is true.
    """
    done = subprocess.run([program(words[0]), *words[1:]], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SetupError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    return done.returncode


def install(stand: Stand, programs: Mapping[str, str], packages: Iterable[str] = ()) -> None:
    """Install what is missing of the system's programs, without starting a service.

    Args:
        stand: what they are for.
        programs: name of a program and of the package that has it.
        packages: further ones that are missing.
    """
    missing = [package for name, package in programs.items() if not shutil.which(name, path=daemon_path())]
    if missing := [*packages, *missing]:
        with stand.engine.locked():
            debian.install(stand.engine, missing, purpose=f"`make {stand.kind}`")


CLONE = Path(__file__).resolve().parents[2]


def here() -> Stand:
    """Return the stand of the clone that this file lies in."""
    return Stand(CLONE)
