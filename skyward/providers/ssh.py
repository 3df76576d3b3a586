"""Nodes as containers of Docker engines on machines reached by SSH.

One connection per machine serves everything: the engine's socket and the nodes' are forwarded through it, so that
nothing listens on a network.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from skyward.errors import (
    ConfigError,
    PoolClosedError,
    ProviderError,
    SkywardError,
)
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.rights import Rights
from skyward.model.spec import Cluster
from skyward.model.ssh import SshHost
from skyward.providers.base import Host, Launch
from skyward.providers.checks import Finding, check_architecture, check_driver, check_host, refuse
from skyward.providers.condition import Condition, condition_of, finding_of
from skyward.providers.containers import POOL, ContainerNode, describe, dismiss_all
from skyward.providers.machine import Machine
from skyward.providers.rundir import PoolDirectory, private_directory, runtime_base, sweep_orphans
from skyward.system import threading
from skyward.system.futures import ThreadPoolExecutor

if TYPE_CHECKING:
    from skyward.build.events import Report

R = TypeVar("R")
_log = logging.getLogger(__name__)
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
        known_hosts: file of the only host keys to trust, also of jump hosts; None for those of the SSH configuration.
        registry: repository through which images reach the hosts, such as "registry.example.com/team/skyward"; None
            to send them through the SSH connections.
        build: "local" builds images on the engine here, "remote" on the first host.
        rights: whom functions run as in their containers, and what they may do: `user` and `privileges`, which
            `sky.Docker` explains. The caller's own user is the one that the connection logs in as.

    Raises:
        ConfigError: a value is wrong.
    """

    can_mount: ClassVar[bool] = True
    hosts: tuple[SshHost, ...]
    key: Path | None
    known_hosts: Path | None
    registry: str | None
    build: Literal["local", "remote"]
    rights: Rights
    _pools: dict[str, _Pool] = field(repr=False, compare=False)
    _expected: dict[str, _Demand] = field(repr=False, compare=False)

    def __init__(
        self,
        *hosts: str,
        key: str | os.PathLike[str] | None = None,
        known_hosts: str | os.PathLike[str] | None = None,
        registry: str | None = None,
        build: Literal["local", "remote"] = "local",
        user: str | None = None,
        privileges: Sequence[str] = (),
    ) -> None:
        set_ = object.__setattr__
        set_(self, "key", _file("key", key))
        set_(self, "known_hosts", _file("known_hosts", known_hosts))
        set_(self, "registry", registry)
        set_(self, "build", build)
        set_(self, "rights", Rights.of("sky.SSH", user, privileges))
        set_(self, "hosts", tuple(self._host(text) for text in hosts))
        set_(self, "_pools", {})
        set_(self, "_expected", {})
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

    def expect(self, pool: str, image: Image, cluster: Cluster) -> None:
        """Have the hosts of a pool checked for what they will run."""
        self._expected[pool] = _Demand(image, image.platform or cluster.spec.platform)

    def acquire(
        self, pool: str, nodes: int, accelerator: Accelerator | None, at_least: int | None = None
    ) -> Sequence[Host]:
        """Connect to as many hosts as there are nodes (to all if there are more nodes), and check them all at once.

        Raises:
            ProviderError: too many hosts cannot be reached or used; one table says which and why, and nothing has been
                changed. Where enough are well, each of the others is a warning.
        """
        sweep_orphans()
        directory = PoolDirectory.create(pool, runtime_base())
        self._pools[pool] = opened = _Pool(pool, directory, self._expected.pop(pool, None), self.rights)
        hosts = self.hosts[:nodes]
        placed = [(hosts[node % len(hosts)], node // len(hosts)) for node in range(nodes)]
        opened.open(placed, accelerator, nodes if at_least is None else at_least)
        machines = {machine.host: machine for machine in opened.machines}
        return [SshNodeHost(machines[host], turn) for host, turn in placed if host in machines]

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:
        """The same host if it is well; else one that the pool does not use, else the lost one if it answers again.

        Raises:
            ProviderError: there is none; says why of each that was tried.
            PoolClosedError: the pool has ended.
        """
        opened = self._pools.get(pool)
        if opened is None:
            raise PoolClosedError(f"Pool {pool} has ended; no node of it can be started.")
        if lost is None:
            return SshNodeHost(opened.another(self.hosts, None, accelerator), 0)
        assert isinstance(lost, SshNodeHost)
        machine = lost.machine
        return SshNodeHost(opened.another(self.hosts, machine, accelerator) if machine.is_gone else machine, lost.turn)

    def host_like(self, text: str) -> SshHost:
        """One more host, with the same key and known host keys as the others."""
        return self._host(text)

    def join(self, pool: str, host: SshHost, accelerator: Accelerator | None) -> Host:
        """Connect to one more host for a pool that is open, and check it.

        Raises:
            ProviderError: it cannot be reached or used.
            PoolClosedError: the pool has ended.
        """
        opened = self._pools.get(pool)
        if opened is None:
            raise PoolClosedError(f"Pool {pool} has ended; no host is connected to for it.")
        return SshNodeHost(opened.another((host,), None, accelerator), 0)

    def prepare(self, hosts: Sequence[Host], image: Image, cluster: Cluster, report: Report) -> str | None:
        """Compile the image, have it built unless it is anywhere, and bring it to every host that lacks it.

        Raises:
            ProviderError: the image cannot run on a host, or there is no room for it; nothing has been changed.
            ImageError: it cannot be had: base, build, registry, transfer.
            EngineMissingError: build="local", and there is no engine here.
        """
        from skyward.providers.ssh_images import Supply

        machines = list(dict.fromkeys(host.machine for host in hosts if isinstance(host, SshNodeHost)))
        demand = _Demand(image, image.platform or cluster.spec.platform)
        refuse([finding for machine in machines for finding in demand.check(machine)], len(machines))
        return Supply(machines, self.registry, self.build, report).bring(image, cluster.spec.python, demand.platform)

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
        self._told(self._ask(lambda machine: dismiss_all(machine.engine, pool)))

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every container of every pool on all hosts: pool, node, name, state, owner, image, id, host.

        Raises:
            ProviderError: hosts could not be asked; one table says which and why.
        """
        found = self._told(self._ask(lambda machine: describe(machine.engine.containers(POOL), machine.name)))
        return [each for machine in found for each in machine]

    def conditions(self) -> Sequence[Condition]:
        """How each host is, in their order: what it has, and what is wrong with it. Nothing is changed on any."""
        answers = self._ask(condition_of)
        return [Condition(host=a.host, findings=(a,)) if isinstance(a, Finding) else a for a in answers]

    def _told(self, answers: Sequence[R | Finding]) -> list[R]:
        refuse([each for each in answers if isinstance(each, Finding)], len(self.hosts))
        return [each for each in answers if not isinstance(each, Finding)]

    def _ask(self, question: Callable[[Machine], R]) -> list[R | Finding]:
        """Ask all hosts through connections that change nothing there; of each its answer, or why there is none."""
        with private_directory() as folder:

            def one(number: int, host: SshHost) -> R:
                machine = Machine(host, "none", folder / str(number), LEASE_S)
                try:
                    machine.open()
                    return question(machine)
                finally:
                    machine.connection.kill()  # its keeper has changed nothing, and ends

            answers: list[R | Finding] = []
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-ask") as threads:
                asked = [(threads.submit(one, number, host), host) for number, host in enumerate(self.hosts)]
                for answer, host in asked:
                    try:
                        answers.append(answer.result())
                    except SkywardError as error:
                        answers.append(finding_of(host.name, error))
        return answers


@dataclass(frozen=True, slots=True)
class _Demand:
    """What hosts will run."""

    image: Image
    platform: str

    def check(self, machine: Machine) -> list[Finding]:
        """What is wrong with a machine for it."""
        name, facts = machine.name, machine.facts
        return check_architecture(name, facts, self.platform) + check_driver(name, facts, self.image)


class _Pool:
    """What a pool of this process holds: a directory here, the machines, and the thread that tells them it lives."""

    def __init__(self, pool: str, directory: PoolDirectory, demand: _Demand | None, rights: Rights) -> None:
        self.id, self._directory, self._demand, self._rights = pool, directory, demand, rights
        self.machines: list[Machine] = []
        self._heirs: dict[Machine, Machine] = {}
        self._tried: set[SshHost] = set()  # hosts that are being connected to
        self._attempts: dict[SshHost, int] = {}  # how often each has been connected to; their order numbers them
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def open(self, placed: Sequence[tuple[SshHost, int]], accelerator: Accelerator | None, at_least: int) -> None:
        """Connect to all hosts and check them; if enough are well, make the pool's directory on each of those.

        Args:
            placed: the host of each node, and the node's turn on it.
            accelerator: of each node.
            at_least: how many nodes must have a host that is well.
        """
        nodes = Counter(host for host, _ in placed)
        gpus = accelerator.count if accelerator else 0
        examine = {host: partial(self._examine, host, count * gpus, accelerator) for host, count in nodes.items()}
        ill = self._on_all(examine)
        if sum(count for host, count in nodes.items() if host not in ill) >= at_least:
            ill |= self._on_all({machine.host: partial(self._go, machine) for machine in tuple(self.machines)})
        findings = [each for host in nodes for each in ill.get(host, ())]
        if sum(count for host, count in nodes.items() if host not in ill) < at_least:
            refuse(findings, len(nodes))
        for each in findings:
            _log.warning("Host %s is not in pool %s yet: %s", each.host, self.id, each.text)
        threading.Thread(target=self._beat, name=f"skyward-{self.id}-beat", daemon=True).start()

    def another(self, hosts: Sequence[SshHost], lost: Machine | None, accelerator: Accelerator | None) -> Machine:
        """A machine in the place of a lost one; where several nodes were on that, they get the same again."""
        with self._lock:
            heir = self._heirs.get(lost) if lost is not None else None
            if heir is not None and not heir.is_gone:
                return heir
            taken = {machine.host for machine in self.machines if not machine.is_gone} | self._tried
            free = [host for host in hosts if host not in taken]
            free.sort(key=lambda host: lost is not None and host == lost.host)  # itself is the last resort
            self._tried |= set(free)
        try:
            return self._first_well(free, lost, accelerator)
        finally:
            with self._lock:
                self._tried -= set(free)

    def _first_well(self, hosts: Sequence[SshHost], lost: Machine | None, accelerator: Accelerator | None) -> Machine:
        gpus, findings = accelerator.count if accelerator else 0, list[Finding]()
        for host in hosts:
            ill = self._on_all({host: partial(self._examine, host, gpus, accelerator)})
            machine = next((each for each in self.machines if each.host == host and not each.is_gone), None)
            if not ill and machine is not None:
                ill = self._on_all({host: partial(self._go, machine)})
            if not ill and machine is not None:
                with self._lock:
                    self._heirs.update({lost: machine} if lost is not None else {})
                return machine
            findings += ill.get(host, ())
        refuse(findings, max(1, len(hosts)))
        raise ProviderError(f"Pool {self.id} uses every host of its list that is well; none is free.")

    def _examine(self, host: SshHost, gpus: int, accelerator: Accelerator | None) -> list[Finding]:
        with self._lock:
            if self._ended.is_set():
                raise PoolClosedError(f"Pool {self.id} has ended; no host is connected to for it.")
            attempt = self._attempts.setdefault(host, 0)
            self._attempts[host] += 1
            slot = list(self._attempts).index(host)
            folder = self._directory.path / f"{slot}.{attempt}"
        machine = Machine(host, self.id, folder, LEASE_S, slot, attempt, self._rights)
        with self._lock:
            self.machines.append(machine)  # from here on `close` ends its connection
        if self._ended.is_set():
            machine.connection.kill()
            raise PoolClosedError(f"Pool {self.id} has ended; no host is connected to for it.")
        try:
            findings = check_host(machine.name, machine.open(), gpus, accelerator)
            findings += self._demand.check(machine) if self._demand else []
            if not findings:
                machine.info  # noqa: B018 - asks the engine, and keeps the answer
        except BaseException:
            self._drop(machine)
            raise
        if findings:
            self._drop(machine)
        return findings

    def _go(self, machine: Machine) -> list[Finding]:
        """Have the pool's directory made on a machine."""
        try:
            machine.go()
        except BaseException:
            self._drop(machine)  # else the host would count as taken, and not be tried again
            raise
        return []

    def _drop(self, machine: Machine) -> None:
        """Do without a machine: its keeper removes what it may have made."""
        machine.connection.kill()
        with self._lock:
            if not self._ended.is_set():
                self.machines.remove(machine)

    def _on_all(self, actions: Mapping[SshHost, Callable[[], list[Finding]]]) -> dict[SshHost, list[Finding]]:
        """Do something on hosts side by side; what went wrong, of those where something did."""
        ill: dict[SshHost, list[Finding]] = {}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-host") as threads:
            for host, done in [(host, threads.submit(action)) for host, action in actions.items()]:
                try:
                    findings = done.result()
                except PoolClosedError:
                    raise
                except SkywardError as error:
                    findings = [finding_of(host.name, error)]
                if findings:
                    ill[host] = findings
        return ill

    def close(self) -> None:
        """End everything on all machines; the first failure is raised when all have been tried."""
        with self._lock:
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
            for machine in tuple(self.machines):
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
        """A port that no other pool of this user on that machine gets until this one is released or claims another."""
        return self.machine.claim_head_port()

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
