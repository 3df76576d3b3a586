"""`sky.SSH`: nodes are containers of the Docker engines of machines reached by SSH.

Each machine has one connection. The sockets of its engine and nodes are forwarded through it, so nothing listens on a
network.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Literal, TypeVar

from skyward.delivery.deliver import ImageTarget, deliver
from skyward.engine import find_engine
from skyward.errors import ConfigError, PoolClosedError, ProviderError, SkywardError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.model.rights import Rights
from skyward.model.ssh import SshHost, existing_file
from skyward.nodes.access import ContainerAccess, NodeAccess
from skyward.nodes.container import POOL, describe, dismiss_all
from skyward.nodes.node import Host, Launch, Node, RunnerNode
from skyward.nodes.run_directory import PoolDirectory, private_directory, runtime_base, sweep_orphans
from skyward.nodes.ssh_host import Machine
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider, check_delivery
from skyward.ssh.connection import handed_hosts
from skyward.ssh.preflight import (
    AT_ONCE,
    Finding,
    HostReport,
    UnfitError,
    check_architecture,
    check_host,
    findings_of,
    host_report_of,
    on_all,
    refuse,
)
from skyward.system import threading
from skyward.system.futures import ThreadPoolExecutor

R = TypeVar("R")
_log = logging.getLogger(__name__)
LEASE_S = 60.0
_BEAT_S = 5.0


@suggesting("sky.SSH")
@dataclass(frozen=True, init=False)
class SSH(Provider):
    """Containers on machines reached by SSH: `sky.SSH("gpu1", "ubuntu@gpu2:2222")`.

    A machine needs an sshd, a Docker engine (20.10 or newer) that the user may use, and the docker command. Connections
    use the configuration, agent and jump hosts of the ssh command. Host keys are always checked.

    Attributes:
        hosts: `[user@]name[:port]`, where the name may be an alias of the SSH configuration. Nodes are assigned in this
            order, one to each host before any gets a second.
        key: file of the private key; None for those of the agent and the SSH configuration.
        known_hosts: file of the only host keys to trust, also of jump hosts; None for those of the SSH configuration.
        registry: repository through which images reach the hosts, such as "registry.example.com/team/skyward"; None
            to send them through the SSH connections.
        build: "local" builds images on the engine here, "remote" on the first host.
        rights: user and privileges of functions in their containers: see `user` and `privileges` of `sky.Docker`. The
            caller's own user is here the one that the connection logs in as.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "ssh"
    capabilities: ClassVar[Capabilities] = Capabilities(mounts=True, keeps=True, default_lease_s=LEASE_S)
    hosts: tuple[SshHost, ...]
    key: Path | None
    known_hosts: Path | None
    registry: str | None
    build: Literal["local", "remote"]
    user: str | None = field(repr=False)
    privileges: Sequence[str] = field(repr=False)
    rights: Rights = field(init=False)

    def __init__(
        self,
        *names: str,
        hosts: Sequence[str | SshHost] = (),
        key: str | os.PathLike[str] | None = None,
        known_hosts: str | os.PathLike[str] | None = None,
        registry: str | None = None,
        build: Literal["local", "remote"] = "local",
        user: str | None = None,
        privileges: Sequence[str] = (),
    ) -> None:
        set_ = object.__setattr__
        handed = handed_hosts()  # the hosts of a detached run have their own files
        set_(self, "key", None if handed else existing_file("sky.SSH", "key", key))
        set_(self, "known_hosts", None if handed else existing_file("sky.SSH", "known_hosts", known_hosts))
        set_(self, "registry", registry)
        set_(self, "build", build)
        rights = Rights.of("sky.SSH", user, privileges)
        set_(self, "rights", rights)
        set_(self, "user", rights.user)
        set_(self, "privileges", rights.privileges)
        given = (*names, *([hosts] if isinstance(hosts, str) else hosts))  # `dataclasses.replace` passes hosts=
        set_(self, "hosts", tuple(self.host(each) for each in given))
        if not given or len(set(self.hosts)) < len(given):
            raise ConfigError(f"sky.SSH() takes the names of one or more hosts, each once; found {list(given)!r}.")
        check_delivery("sky.SSH", build, registry)

    def host(self, named: str | SshHost) -> SshHost:
        """Return a host, with the key and known host keys of this provider.

        Raises:
            ConfigError: it is not a valid name of a host.
        """
        if not isinstance(named, str | SshHost):
            raise ConfigError(f"sky.SSH: a host is 'user@host:port', as in sky.SSH('gpu1', 'gpu2'); found {named!r}.")
        host = named if isinstance(named, SshHost) else SshHost.parse(named if "://" in named else f"ssh://{named}")
        if host.name in (handed := handed_hosts()):
            return handed[host.name]
        key, known = (None if path is None else str(path) for path in (self.key, self.known_hosts))
        return replace(host, key=key, known_hosts=known)

    def open(self, request: PoolRequest) -> SshAllocation:
        """Return the allocation of the machines for a pool."""
        return SshAllocation(request, self.hosts, registry=self.registry, build=self.build, rights=self.rights)

    def destroy(self, pool_id: str) -> None:
        """End and remove every container of a pool on all hosts, whichever client started it."""

        def end(machine: Machine) -> None:
            dismiss_all(machine.engine, pool_id)
            machine.watchdog.clear(pool_id)

        self._ask_all(end)

    def find(self) -> Sequence[Resource]:
        """Return every container of every pool on all hosts."""
        found = self._ask_all(lambda machine: describe(machine.engine.containers(POOL), machine.name))
        return [each for machine in found for each in machine]

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a container, through a separate SSH connection and the engine there."""
        host = next((host for host in self.hosts if host.name == node.get("host")), None)
        if host is None:
            hosts = [host.name for host in self.hosts]
            raise ProviderError(f"Host {node.get('host')} of {node['name']} is not one of {hosts}.")
        with ExitStack() as last:
            machine = Machine(host, "none", last.enter_context(private_directory()) / "m", LEASE_S)
            last.callback(machine.connection.kill)  # its watchdog has changed nothing, and exits
            machine.open()
            return ContainerAccess(node, machine.engine_address, last.pop_all().close, machine.why_out_of_reach)

    def host_reports(self) -> Sequence[HostReport]:
        """Return properties and problems of each host, in order. Changes nothing on any host."""
        reports, unfit = self._ask(host_report_of)
        return [reports.get(host) or HostReport(host=host.name, findings=unfit[host]) for host in self.hosts]

    def _ask_all(self, question: Callable[[Machine], R]) -> list[R]:
        """Query all hosts; refuse if one does not answer."""
        answers, unfit = self._ask(question)
        refuse([each for findings in unfit.values() for each in findings], len(self.hosts))
        return list(answers.values())

    def _ask(self, question: Callable[[Machine], R]) -> tuple[dict[SshHost, R], dict[SshHost, tuple[Finding, ...]]]:
        """Query all hosts over connections that change nothing there; return the answers, and why others have none."""
        with private_directory() as folder:

            def one(number: int, host: SshHost) -> R:
                machine = Machine(host, "none", folder / str(number), LEASE_S)
                try:
                    machine.open()
                    return question(machine)
                finally:
                    machine.connection.kill()  # its watchdog has changed nothing, and exits

            return on_all({host: partial(one, number, host) for number, host in enumerate(self.hosts)})


class SshAllocation(Allocation):
    """The machines of one pool, a local directory, and the thread that sends heartbeats to the machines."""

    def __init__(
        self,
        request: PoolRequest,
        hosts: Sequence[SshHost],
        *,
        registry: str | None,
        build: Literal["local", "remote"],
        rights: Rights,
    ) -> None:
        super().__init__(request)
        self._host_list, self._registry, self._build, self._rights = tuple(hosts), registry, build, rights
        self._directory: PoolDirectory | None = None
        self.machines: list[Machine] = []
        self._replacements: dict[Machine, Machine] = {}
        self._tried: set[SshHost] = set()  # hosts to which a connection is being made
        # slot and attempt of the next watchdog on each host; first those left by an earlier client of a named pool
        self._places = {str(each["host"]): (int(each["slot"]), int(each["attempt"])) for each in request.kept}
        self._left = {name: f"{slot}.{attempt}" for name, (slot, attempt) in self._places.items()}
        self._lock = threading.Lock()

    def acquire(self) -> Sequence[Host]:
        """Connect to as many hosts as there are nodes (to all if there are more nodes), and check them in parallel."""
        request, hosts = self.request, self._host_list[: self.request.nodes]
        sweep_orphans()
        # a killed client's connections may still be closing, in a directory of the same pool
        unique = request.pool_id if request.name is None else f"{token_hex(4)}.x"
        self._directory = PoolDirectory.create(unique, runtime_base())
        placed = [(hosts[node % len(hosts)], node // len(hosts)) for node in range(request.nodes)]
        machines = self._connect(Counter(host for host, _ in placed))
        return [SshNodeHost(machines[host], turn) for host, turn in placed if host in machines]

    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Deliver the image to every host that lacks it; it is built if no engine and no registry has it."""
        request = self.request
        machines = list(dict.fromkeys(host.machine for host in hosts if isinstance(host, SshNodeHost)))
        return deliver(request.image, request.cluster, self.target(machines), request.report).tag

    def target(self, machines: Sequence[Machine]) -> ImageTarget:
        """Return the engine that builds images, and these machines as the destinations."""
        builder = machines[0] if self._build == "remote" else None
        return ImageTarget(
            engine=builder.engine_address if builder else find_engine(),
            docker_host=builder.connection.through if builder else None,
            machines=machines,
            registry=self._registry,
        )

    def replace(self, lost: Host | None) -> Host:
        """Return the same host if it is usable; else an unused one, else the lost one if it answers again."""
        self.check_open()
        if lost is None:
            return SshNodeHost(self._another(self._host_list, None), 0)
        assert isinstance(lost, SshNodeHost)
        machine = lost.machine
        return SshNodeHost(self._another(self._host_list, machine) if machine.is_gone else machine, lost.turn)

    def join(self, host: SshHost) -> SshNodeHost:
        """Connect to one more host, and check it.

        Raises:
            ProviderError: it cannot be reached or used.
            PoolClosedError: the pool has ended.
        """
        self.check_open()
        return SshNodeHost(self._another((host,), None), 0)

    def _connect(self, nodes: Mapping[SshHost, int]) -> dict[SshHost, Machine]:
        """Connect to all hosts and check them; if enough are usable, create the pool's directory on each of those.

        Args:
            nodes: number of nodes for each host.
        """
        gpus, fewest = self.request.gpus, self.request.fewest
        machines, unfit = on_all({host: partial(self._examine, host, count * gpus) for host, count in nodes.items()})
        if sum(nodes[host] for host in machines) >= fewest:
            begun, late = on_all({host: partial(self._begin, machine) for host, machine in machines.items()})
            machines, unfit = begun, unfit | late
        findings = [each for host in nodes for each in unfit.get(host, ())]
        if sum(nodes[host] for host in machines) < fewest:
            refuse(findings, len(nodes))
        for each in findings:
            _log.warning("Host %s is not in pool %s yet: %s", each.host, self.request.pool_id, each.text)
        threading.Thread(target=self._beat, name=f"skyward-{self.request.pool_id}-beat", daemon=True).start()
        return machines

    def _another(self, hosts: Sequence[SshHost], lost: Machine | None) -> Machine:
        """Return a machine to replace a lost one; several nodes of the lost one get the same replacement."""
        with self._lock:
            replacement = self._replacements.get(lost) if lost is not None else None
            if replacement is not None and not replacement.is_gone:
                return replacement
            taken = {machine.host for machine in self.machines if not machine.is_gone} | self._tried
            free = [host for host in hosts if host not in taken]
            free.sort(key=lambda host: lost is not None and host == lost.host)  # the lost one is tried last
            self._tried |= set(free)
        try:
            return self._first_usable(free, lost)
        finally:
            with self._lock:
                self._tried -= set(free)

    def _first_usable(self, hosts: Sequence[SshHost], lost: Machine | None) -> Machine:
        findings = list[Finding]()
        for host in hosts:
            try:
                machine = self._begin(self._examine(host, self.request.gpus))
            except PoolClosedError:
                raise
            except SkywardError as error:
                findings += findings_of(host.name, error)
                continue
            if lost is not None:
                with self._lock:
                    self._replacements[lost] = machine
            return machine
        refuse(findings, max(1, len(hosts)))
        raise ProviderError(f"Pool {self.request.pool_id} uses every host of its list that can be used; none is free.")

    def _examine(self, host: SshHost, gpus: int) -> Machine:
        """Connect to a host that is to have this many GPUs, and check it; raise UnfitError if it cannot be used."""
        with self._lock:
            self.check_open()
            assert self._directory
            fresh = (max((slot for slot, _ in self._places.values()), default=-1) + 1, 0)
            slot, attempt = self._places.get(host.name, fresh)
            self._places[host.name] = (slot, attempt + 1)
            folder = self._directory.path / f"{slot}.{attempt}"
        machine = Machine(host, self.request.pool_id, folder, self.request.lease_s, slot, attempt, self._rights)
        with self._lock:
            self.machines.append(machine)  # from now on `close` ends its connection
        try:
            self.check_open()
            findings = check_host(machine.name, machine.open(), gpus, self.request.accelerator)
            findings += check_architecture(machine.name, machine.facts, self.request.platform)
            if findings:
                raise UnfitError(findings)
            machine.info  # noqa: B018 - queries the engine, and caches the answer
        except BaseException:
            self._drop(machine)
            raise
        return machine

    def _begin(self, machine: Machine) -> Machine:
        """Create the pool's directory on a machine."""
        adopts = self._left.pop(machine.name, None) == machine.watchdog.label
        try:
            machine.go(self.request.name, adopts=adopts)
        except BaseException:
            self._drop(machine)  # otherwise the host would count as in use, and not be tried again
            raise
        return machine

    def _drop(self, machine: Machine) -> None:
        """Disconnect from a machine and forget it; its watchdog removes the pool's resources there."""
        machine.connection.kill()
        with self._lock:
            if not self.ended.is_set():
                self.machines.remove(machine)

    def adopt(self, launch: Launch, about: Mapping[str, Any], agent: str) -> tuple[Node, None]:
        """Return a container started by an earlier client."""
        there = [each for each in tuple(self.machines) if each.name == about["host"] and not each.is_gone]
        if not there:
            hosts = [host for host in self._host_list if host.name == about["host"]]
            there = [self._another(hosts, None)]
        return there[0].adopt(launch, about, agent), None

    def about(self, node: int) -> Mapping[str, Any]:
        """Return host, watchdog, directory and container of a node."""
        return next(each for each in reversed(self.machines) if node in each.nodes).about(node)

    def let_go(self, keep_s: float, nodes: Collection[int]) -> None:
        """Leave these nodes running, and end everything else; the first error is raised after all have been tried."""

        def end(machine: Machine) -> None:
            if set(machine.nodes).isdisjoint(nodes):
                machine.close()
            else:
                machine.leave(keep_s)

        for _, error in self._end(end):
            raise error

    def release(self) -> None:
        """End everything on all machines; errors are raised after all have been tried."""
        failures = []
        for machine, error in self._end(Machine.close):
            if not isinstance(error, SkywardError):
                raise error
            failures.append(f"  {machine.name}  {error}")
        if failures:
            told = f"Containers of pool {self.request.pool_id} may be left, and end by their lease:"
            raise ProviderError("\n".join([told, *failures]))

    def _end(self, end: Callable[[Machine], None]) -> list[tuple[Machine, BaseException]]:
        """End all machines in parallel, and remove the local directory; return the failures by machine."""
        with self._lock:
            machines = tuple(self.machines)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="skyward-host") as threads:
            tries = [(machine, threads.submit(end, machine)) for machine in machines]
            failed = [(machine, error) for machine, done in tries if (error := done.exception()) is not None]
        if self._directory is not None:
            self._directory.remove()
        return failed

    def _beat(self) -> None:
        while not self.ended.wait(min(_BEAT_S, self.request.lease_s / 3)):
            for machine in tuple(self.machines):
                machine.beat()


@dataclass(frozen=True, slots=True)
class SshNodeHost:
    """A machine as the host of one node.

    Attributes:
        machine: the machine.
        turn: number of nodes of the pool assigned to it before this one.
    """

    machine: Machine
    turn: int

    @property
    def name(self) -> str:
        """The machine's name, as written by the caller."""
        return self.machine.name

    @property
    def address(self) -> str:
        """The IP address at which the other machines reach it."""
        return self.machine.address

    def claim_port(self) -> int:
        """Return a port of that machine on which nothing listens."""
        return self.machine.watchdog.port()

    def start(self, launch: Launch) -> RunnerNode:
        """Start the container of one node.

        Raises:
            EngineError: the engine refuses, or the machine does not answer.
        """
        count = launch.accelerator.count if launch.accelerator else 0
        gpus = tuple(range(self.turn * count, (self.turn + 1) * count)) if count else None
        return self.machine.start(launch, gpus)
