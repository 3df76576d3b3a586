"""Nodes as containers of Docker engines on machines reached by SSH.

One connection per machine serves everything: the engine's socket and the nodes' are forwarded through it, so that
nothing listens on a network.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from skyward.errors import ConfigError, EngineError, EngineMissingError, ProviderError, SkywardError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.model.ssh import SshHost
from skyward.providers.base import Host, Launch
from skyward.providers.checks import Finding, check_architecture, check_driver, check_host, refuse
from skyward.providers.containers import POOL, ContainerNode, describe, remove_all
from skyward.providers.machine import Machine
from skyward.providers.rundir import PoolDirectory, runtime_base, sweep_orphans

if TYPE_CHECKING:
    from skyward.build.events import Report

R = TypeVar("R")
LEASE_S = 60.0
_BEAT_S = 5.0
_AT_ONCE = 8  # sshd's default is to refuse at 10 that have not logged in yet, of which a jump host sees all


@dataclass(frozen=True, init=False)
class SSH:
    """Containers on machines reached by SSH: `sky.SSH("gpu1", "ubuntu@gpu2:2222")`.

    A machine needs an sshd, a Docker engine (20.10 or newer) that the user may use, and the docker command. Reaching
    it is the system's OpenSSH's matter: its configuration, agent and jump hosts count. Host keys are checked, always.

    Attributes:
        hosts: `[user@]name[:port]`, where the name may be an alias of the SSH configuration. Nodes are put on them in
            this order, one on each before any gets a second.
        key: file of the private key; None for what agent and SSH configuration offer.
        known_hosts: file of the only host keys to trust; None for those of the SSH configuration.
        registry: repository through which images reach the hosts, such as "registry.example.com/team/skyward"; None
            to send them through the SSH connections.
        build: "local" builds images on the engine here, "remote" on the first host.

    Raises:
        ConfigError: a value is wrong.
    """

    hosts: tuple[SshHost, ...]
    key: Path | None
    known_hosts: Path | None
    registry: str | None
    build: Literal["local", "remote"]
    _pools: dict[str, _Pool] = field(repr=False, compare=False)

    def __init__(
        self,
        *hosts: str,
        key: str | os.PathLike[str] | None = None,
        known_hosts: str | os.PathLike[str] | None = None,
        registry: str | None = None,
        build: Literal["local", "remote"] = "local",
    ) -> None:
        set_ = object.__setattr__
        set_(self, "key", _file("key", key))
        set_(self, "known_hosts", _file("known_hosts", known_hosts))
        set_(self, "registry", registry)
        set_(self, "build", build)
        set_(self, "hosts", tuple(self._host(text) for text in hosts))
        set_(self, "_pools", {})
        if not hosts or len(set(self.hosts)) < len(hosts):
            raise ConfigError(f"sky.SSH() takes the names of one or more hosts, each once; found {list(hosts)!r}.")
        if build not in ("local", "remote"):
            raise ConfigError(f"sky.SSH: build must be 'local' or 'remote'; found {build!r}.")
        if registry is not None:
            from skyward.build.registry import parse_reference

            parse_reference(registry)

    def _host(self, text: str) -> SshHost:
        if not isinstance(text, str):
            raise ConfigError(f"sky.SSH: a host is named as 'user@host:port'; found {text!r}.")
        host = SshHost.parse(text if "://" in text else f"ssh://{text}")
        key, known = (None if path is None else str(path) for path in (self.key, self.known_hosts))
        return replace(host, key=key, known_hosts=known)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "ssh"

    @property
    def lease_s(self) -> float:
        """Seconds a container outlives a client that is silent. One that is gone is noticed at once."""
        return LEASE_S

    def acquire(self, pool: str, nodes: int, accelerator: Accelerator | None) -> Sequence[Host]:
        """Connect to as many hosts as there are nodes (to all if there are more nodes), and check them all at once.

        Raises:
            ProviderError: hosts cannot be reached or used; one table says which and why, and nothing has been changed.
        """
        sweep_orphans()
        directory = PoolDirectory.create(pool, runtime_base())
        self._pools[pool] = opened = _Pool(pool, directory, self.hosts[:nodes])
        wanted = [0] * len(self.hosts[:nodes])
        for node in range(nodes):
            wanted[node % len(wanted)] += accelerator.count if accelerator else 0
        opened.open(wanted, accelerator)
        placed = [opened.machines[node % len(wanted)] for node in range(nodes)]
        return [SshNodeHost(machine, node // len(wanted)) for node, machine in enumerate(placed)]

    def prepare(self, hosts: Sequence[Host], image: Image, cluster: Cluster, report: Report) -> str | None:
        """Compile the image, have it built unless it is anywhere, and bring it to every host that lacks it.

        Raises:
            ProviderError: the image cannot run on a host, or there is no room for it; nothing has been changed.
            ImageError: it cannot be had: base, build, registry, transfer.
            EngineMissingError: build="local", and there is no engine here.
        """
        from skyward.providers.ssh_images import Supply

        machines = list(dict.fromkeys(host.machine for host in hosts if isinstance(host, SshNodeHost)))
        platform = image.platform or cluster.spec.platform
        findings: list[Finding] = []
        for machine in machines:
            findings += check_architecture(machine.name, machine.facts, platform)
            findings += check_driver(machine.name, machine.facts, image)
        refuse(findings, len(machines))
        return Supply(machines, self.registry, self.build, report).bring(image, cluster.spec.python, platform)

    def release(self, pool: str) -> None:
        """End and remove every container of the pool on all hosts, whoever started it, and what else it holds.

        Raises:
            ProviderError: hosts could not be asked; containers may be left there, which end by their lease.
            EngineError: an engine refuses.
        """
        opened = self._pools.pop(pool, None)
        if opened is not None:
            opened.close()
            return
        _, findings = self._ask(lambda machine: remove_all(machine.engine, pool))
        refuse(findings, len(self.hosts))

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every container of every pool on all hosts: pool, node, name, state, owner, image, id, host.

        Raises:
            ProviderError: hosts could not be asked; one table says which and why.
        """
        found, findings = self._ask(lambda machine: describe(machine.engine.containers(POOL), machine.name))
        refuse(findings, len(self.hosts))
        return [each for machine in found for each in machine]

    def _ask(self, question: Callable[[Machine], R]) -> tuple[list[R], list[Finding]]:
        """Ask all hosts through connections of the moment, which change nothing there."""
        with tempfile.TemporaryDirectory(prefix="sky-", dir=runtime_base()) as folder:

            def one(number: int, host: SshHost) -> R:
                machine = Machine(host, "none", Path(folder) / str(number), LEASE_S)
                try:
                    machine.open()
                    return question(machine)
                finally:
                    machine.connection.kill()  # its keeper has changed nothing, and ends

            answers, findings = [], []
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-ask") as threads:
                asked = [(threads.submit(one, number, host), host) for number, host in enumerate(self.hosts)]
                for answer, host in asked:
                    try:
                        answers.append(answer.result())
                    except SkywardError as error:
                        findings.append(Finding(host.name, "ssh", str(error)))
        return answers, findings


class _Pool:
    """What a pool of this process holds: a directory here, the machines, and the thread that tells them it lives."""

    def __init__(self, pool: str, directory: PoolDirectory, hosts: Sequence[SshHost]) -> None:
        self.id, self._directory, self._hosts = pool, directory, hosts
        self.machines: list[Machine] = []
        self._ended = threading.Event()

    def open(self, gpus: Sequence[int], accelerator: Accelerator | None) -> None:
        """Connect to all machines and check them; only if all are well, make the pool's directory on each."""

        def examine(number: int) -> list[Finding]:
            machine = Machine(self._hosts[number], self.id, self._directory.path / str(number), LEASE_S)
            self.machines.append(machine)  # from here on `close` ends its connection
            findings = check_host(machine.name, machine.open(), gpus[number], accelerator)
            if not findings:
                machine.info  # noqa: B018 - asks the engine, and keeps the answer
            return findings

        def go(number: int) -> list[Finding]:
            self.machines[number].go()
            return []

        self._on_all(examine)
        self.machines.sort(key=lambda machine: self._hosts.index(machine.host))
        self._on_all(go)
        threading.Thread(target=self._beat, name=f"skyward-{self.id}-beat", daemon=True).start()

    def _on_all(self, action: Callable[[int], list[Finding]]) -> None:
        """Do something on all machines side by side, and raise what went wrong as one table."""
        findings: list[Finding] = []
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-host") as threads:
            done = [threads.submit(action, number) for number in range(len(self._hosts))]
            for host, each in zip(self._hosts, done, strict=True):
                try:
                    findings += each.result()
                except EngineMissingError:
                    findings.append(Finding(host.name, "engine", "Its engine does not answer. Start Docker there."))
                except EngineError as error:
                    findings.append(Finding(host.name, "engine", str(error)))
                except SkywardError as error:
                    findings.append(Finding(host.name, "ssh", str(error)))
        refuse(findings, len(self._hosts))

    def close(self) -> None:
        """End everything on all machines; the first failure is raised when all have been tried."""
        self._ended.set()
        failures = []
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-host") as threads:
            for machine, done in [(machine, threads.submit(machine.close)) for machine in self.machines]:
                error = done.exception()
                if isinstance(error, SkywardError):
                    failures.append(Finding(machine.name, "engine", str(error)))
                elif error is not None:
                    raise error
        self._directory.remove()
        if failures:
            lines = "\n".join(f"  {failure.host}  {failure.text}" for failure in failures)
            raise ProviderError(f"Containers of pool {self.id} may be left, and end by their lease:\n{lines}")

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            for machine in self.machines:
                machine.keeper.beat()


@dataclass(frozen=True, slots=True)
class SshNodeHost:
    """A machine as the host of one node.

    Attributes:
        machine: the machine.
        turn: how many nodes of the pool are on it before this one.
    """

    machine: Machine
    turn: int

    @property
    def name(self) -> str:
        """The machine's name, as the caller wrote it."""
        return self.machine.name

    @property
    def address(self) -> str:
        """IP address at which the other machines reach it."""
        return self.machine.address

    def claim_port(self) -> int:
        """A port that no other pool on that machine gets until this pool is released."""
        return self.machine.claim_port()

    def start(self, launch: Launch) -> ContainerNode:
        """Start the container of one node.

        Raises:
            EngineError: the engine refuses, or the machine is gone.
        """
        count = launch.accelerator.count if launch.accelerator else 0
        gpus = tuple(range(self.turn * count, (self.turn + 1) * count)) if count else None
        return self.machine.start(launch, gpus)


def _file(name: str, path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.is_file():
        raise ConfigError(f"sky.SSH: {name} names the file {found}, which does not exist.")
    return found
