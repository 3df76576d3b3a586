"""A pool's service, with one task per node, and its secret; the tasks, which are claimed and become nodes.

The tasks use their machine's network. The secret contains an identity for each, created for this pool only:
certificates, because the TLS of Python's standard library supports pre-shared keys only since 3.13.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from skyward.builder.events import Report, note
from skyward.errors import EngineError, NodeStartError, PoolClosedError, ProviderError
from skyward.model.rights import DEFAULT
from skyward.nodes.claimed import Claim, ClaimedProcess, claim_at, end, open_through
from skyward.nodes.container import COMMAND, POOL, owner_labels
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.nodes.process_id import ProcessId
from skyward.providers.swarm.manager import Document, Manager, address_of, name_of_machine
from skyward.runner.entry.claimed import RESTART, SLOT_VAR, TASK_SECRET, TASK_VAR, ports
from skyward.system import socket, threading, time
from skyward.system.futures import ThreadPoolExecutor
from skyward.wire.tls import Identity

_GIB = 1024**3
_SECOND = 10**9  # the engine counts in nanoseconds
_STOP_S = 12  # a runner that is asked to end takes 5 s for its workers
_AGAIN_S = 1  # delay before a failed task is restarted
_LOOK_S = 0.15  # no event reports tasks; listing those of one service takes a manager 2 ms
_PLACE_S = 15.0  # how long the engine may fail to place a task before that is an error
_PULL_S = 600.0  # how long it may take until all tasks run, including the transfer of their image
_ANSWER_S = 30.0  # how long a running task may take to answer
_SAY_EVERY_S = 5.0
_AT_ONCE = 16
_FAILURES = 3  # consecutive tasks that fail to start
_BROKEN = ("failed", "rejected")
_REASON_S = 1.5  # how long the swarm may take to report how a task ended
_END_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """The settings of a pool's service.

    Attributes:
        pool: its identifier.
        nodes: number of tasks.
        image: the image they run, by digest.
        platform: OCI platform of that image.
        secret: id of the pool's secret.
        managers: addresses of the swarm's managers, as `host:port`.
        lease_s: seconds that a task waits for its client.
        shm_bytes: size of /dev/shm in bytes.
        gpus: kind of the generic resource, and the number a node needs; None for no GPUs.
        cpus: CPUs of a node, both reserved and the limit; None for no limit.
        memory_gb: memory of a node in GiB, likewise.
        user: the user of the tasks' programs, "user:group" by name or number; None for the user set in the image.
        privileges: capabilities that they can have, as in `Rights`.
    """

    pool: str
    nodes: int
    image: str
    platform: str
    secret: str
    managers: Sequence[str]
    lease_s: float
    shm_bytes: int
    gpus: tuple[str, int] | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    user: str | None = None
    privileges: tuple[str, ...] | Literal["default"] = ()


def name_of(pool: str) -> str:
    """Return the name of a pool's service and of its secret."""
    return f"skyward-{pool}"


def of_slot(tasks: Sequence[Document], slot: int) -> list[Document]:
    """Return the tasks that a slot has had, the current one last."""
    return sorted((task for task in tasks if task.get("Slot") == slot), key=lambda task: str(task["CreatedAt"]))


def labels_of(pool: str, owner: ProcessId) -> dict[str, str]:
    """Return the labels of service and secret. Containers get none: the engine would just replace a removed one."""
    return {POOL: pool, **owner_labels(owner)}


def secret_text(tasks: Sequence[Identity]) -> str:
    """Return the pool's secret, a template from which the engine gives each task only its own part.

    https://docs.docker.com/reference/cli/docker/service/create/#create-services-using-templates
    """
    parts = [
        f'{{{{if eq .Task.Slot "{slot}"}}}}{json.dumps(asdict(identity))}{{{{end}}}}'
        for slot, identity in enumerate(tasks, 1)
    ]
    return "".join(parts)


def service_spec(spec: ServiceSpec, owner: ProcessId) -> dict[str, Any]:
    """Return the service in the format of the engine's API."""
    return {
        "Name": name_of(spec.pool),
        "Labels": labels_of(spec.pool, owner),
        "Mode": {"Replicated": {"Replicas": spec.nodes}},
        "TaskTemplate": {
            "ContainerSpec": _container(spec),
            "Resources": _resources(spec),
            # a task that ends with status 0 has finished and is not restarted
            "RestartPolicy": {"Condition": "on-failure", "Delay": _AGAIN_S * _SECOND, "MaxAttempts": 0},
            "Placement": {"Platforms": [_platform(spec.platform)]},
            "Networks": [{"Target": "host"}],
        },
    }


def _container(spec: ServiceSpec) -> dict[str, Any]:
    settings = {
        "pool": spec.pool,
        "lease_s": spec.lease_s,
        "managers": list(spec.managers),
        "gains_privileges": bool(spec.privileges),
    }
    env = {TASK_VAR: json.dumps(settings), SLOT_VAR: "{{.Task.Slot}}"}
    if spec.gpus:  # the engine reserves GPUs but does not pass them on; the runtime does
        env |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    file = {"Name": TASK_SECRET.name, "UID": "0", "GID": "0", "Mode": 0o444}
    return {
        "Image": spec.image,
        "Command": [COMMAND[0], "-m", "skyward.runner.entry.claimed", "task"],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Init": True,
        **_rights(spec),
        "StopGracePeriod": _STOP_S * _SECOND,
        "Secrets": [{"SecretID": spec.secret, "SecretName": name_of(spec.pool), "File": file}],
        "Mounts": [{"Type": "tmpfs", "Target": "/dev/shm", "TmpfsOptions": {"SizeBytes": spec.shm_bytes}}],
    }


def _rights(spec: ServiceSpec) -> dict[str, Any]:
    """Return user and capabilities; no others can be acquired."""
    rights: dict[str, Any] = {} if spec.user is None else {"User": spec.user}
    if spec.privileges == DEFAULT:
        return rights
    rights["CapabilityDrop"] = ["ALL"]
    if spec.privileges:
        rights["CapabilityAdd"] = list(spec.privileges)
    else:  # since API 1.44 (engine 25), ignored by older ones; there the task's program does it for its children
        rights["Privileges"] = {"NoNewPrivileges": True}
    return rights


def _resources(spec: ServiceSpec) -> dict[str, Any]:
    """Return limits, which are also reserved, so that no machine is overcommitted."""
    limits: dict[str, Any] = {}
    if spec.cpus is not None:
        limits["NanoCPUs"] = int(spec.cpus * 1e9)
    if spec.memory_gb is not None:
        limits["MemoryBytes"] = int(spec.memory_gb * _GIB)
    reserved = dict(limits)
    if spec.gpus:
        kind, count = spec.gpus
        reserved["GenericResources"] = [{"DiscreteResourceSpec": {"Kind": kind, "Value": count}}]
    return {"Limits": limits, "Reservations": reserved}


def _platform(platform: str) -> Mapping[str, str]:
    system, _, processor = platform.partition("/")
    return {"OS": system, "Architecture": processor.partition("/")[0]}


# tasks ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that waits to become a node.

    Attributes:
        task: its id.
        slot: its number in the service.
        machine: host name of its machine.
        address: IP address of that machine in the swarm.
        port: the port it listens on.
        claim: this client's connection to it.
    """

    task: str
    slot: int
    machine: str
    address: str
    port: int
    claim: Claim


class TaskClaimer:
    """Claims the tasks of one pool, and connects to them.

    Args:
        manager: connection to the swarm's manager.
        contexts: TLS contexts with the client's identity towards the task of each slot.
        pool: identifier of the pool.
        report: called with progress notes while waiting.
        ended: set when the pool has ended, which ends all waiting.
    """

    def __init__(
        self,
        manager: Manager,
        contexts: Mapping[int, ssl.SSLContext],
        pool: str,
        report: Report,
        ended: threading.Event,
    ) -> None:
        self._manager, self._contexts, self._pool, self._report, self._ended = manager, contexts, pool, report, ended
        self._restarting, self._restarted_at = threading.Lock(), float("-inf")

    def claim(self, slots: Collection[int], count: int, given_up: Collection[str] = ()) -> dict[int, ClaimedTask]:
        """Wait until tasks run in `count` of these slots, and claim them.

        Args:
            slots: numbers of the tasks in their service, from 1.
            count: number of tasks wanted.
            given_up: ids of tasks that must not be claimed again; one that still answers is told to end.

        Raises:
            ProviderError: the engine finds no machine for too many of the tasks, or takes too long.
            NodeStartError: tasks end instead of waiting.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        began = said = time.monotonic()
        claims, waiting = dict[int, ClaimedTask](), Waiting(began)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"skyward-{self._pool}-claim") as threads:
            try:
                while True:
                    view = self._look(set(slots) - set(claims), given_up)
                    tries = [(slot, threads.submit(self._claim, slot, view, given_up)) for slot in view.running]
                    for slot, tried in tries:
                        if (found := tried.result()) is None:
                            continue
                        if len(claims) < count:
                            claims[slot] = found
                        else:
                            found.claim.session.close()
                    if len(claims) >= count:
                        return claims
                    missing = set(slots) - set(claims)
                    if missing and all(map(view.has_completed, missing)):
                        self._restart_all()
                    self._check(view, missing, waiting, can_miss=len(slots) - count)
                    if time.monotonic() - said > _SAY_EVERY_S:
                        said = time.monotonic()
                        self._report(note(view.waited_for()))
                    if self._ended.wait(_LOOK_S):
                        raise PoolClosedError(f"Pool {self._pool} has ended; no task is waited for any more.")
            except BaseException:
                for found in claims.values():
                    found.claim.session.close()
                raise

    def _look(self, slots: Collection[int], given_up: Collection[str]) -> View:
        """Return the manager's current view of the tasks."""
        tasks = self._manager.api.tasks(name_of(self._pool))
        if not tasks and not self._manager.api.labelled("service", f"{POOL}={self._pool}"):
            raise PoolClosedError(f"Pool {self._pool} was ended by another client: its service is gone.")
        return View({slot: of_slot(tasks, slot) for slot in sorted(slots)}, self._manager.machines(), given_up)

    def _claim(self, slot: int, view: View, given_up: Collection[str]) -> ClaimedTask | None:
        """Claim a task; return None if it does not answer yet, or has been given up."""
        task = view.running[slot]
        machine = view.machines[task["NodeID"]]
        address = address_of(machine)
        dial, where = partial(self._manager.dial, address), ports(self._pool, slot)
        found = claim_at(dial, where, self._contexts[slot], f"skyward-{self._pool}-{slot}")
        if found is None:
            return None
        claim, port = found
        if task["ID"] in given_up:
            end(claim.session, RESTART)
        if claim.busy or task["ID"] in given_up:
            claim.session.close()
            return None
        return ClaimedTask(str(task["ID"]), slot, name_of_machine(machine), address, port, claim)

    def connect(self, task: ClaimedTask, address: str) -> socket.socket:
        """Return a socket that leads to an address that a node has announced.

        Raises:
            WireError: nothing is listening there any more.
        """
        where = f"{address} of the task on {task.machine} ({task.address}:{task.port})"
        dial = partial(self._manager.dial, task.address, task.port)
        name = f"skyward-{self._pool}-{address}"
        return open_through(dial, self._contexts[task.slot], address, where=where, name=name)

    def _restart_all(self) -> None:
        """Restart all tasks if all have ended with status 0, as after the lease of a silent client.

        The engine leaves such slots empty until the specification of their task changes, which affects all slots.
        Nothing is therefore done while one of them has a task in another state.
        """
        name = name_of(self._pool)
        with self._restarting:
            tasks = self._manager.api.tasks(name)
            newest = [of_slot(tasks, slot)[-1] for slot in sorted({int(task["Slot"]) for task in tasks})]
            is_recent = time.monotonic() - self._restarted_at < _PLACE_S
            if not is_recent and all(task["Status"]["State"] == "complete" for task in newest):
                self._manager.api.restart_tasks(name)
                self._restarted_at = time.monotonic()

    def _check(self, view: View, missing: Collection[int], waiting: Waiting, can_miss: int) -> None:
        """Raise the error of a task that cannot be expected to run, if more of them fail than can be missed."""
        trouble = [error for slot in sorted(missing) if (error := self._trouble(view, slot, waiting)) is not None]
        if len(trouble) > can_miss:
            raise trouble[0]

    def _trouble(self, view: View, slot: int, waiting: Waiting) -> ProviderError | None:
        """Return why a task cannot be expected to run; None if it may only need more time."""
        who, history = f"node {slot - 1} of pool {self._pool}", view.tasks[slot]
        newest = history[-1] if history else None
        state = str(newest["Status"]["State"]) if newest else "not there"
        broken = [task for task in history if task["Status"]["State"] in _BROKEN and task["ID"] not in view.given_up]
        silent_s = waiting.silent_s(slot, expected=view.should_answer(slot))
        if newest and state == "pending" and waiting.waited_s > _PLACE_S:
            why = newest["Status"].get("Err") or newest["Status"].get("Message")
            return ProviderError(f"The swarm finds no machine for {who}: {why}.")
        if view.has_completed(slot) and waiting.waited_s > _PLACE_S:
            return ProviderError(
                f"The task for {who} has ended with status 0, as after `docker stop`. A swarm starts no other for it "
                "as long as the pool has another task."
            )
        if len(broken) >= _FAILURES and newest in broken:
            lines = self._manager.api.last_lines(str(broken[-1]["ID"]))
            told = f"Last lines of one:\n{lines}" if lines else "They printed nothing."
            return NodeStartError(f"The tasks for {who} fail: {broken[-1]['Status'].get('Err')}. {told}")
        if newest and silent_s > _ANSWER_S:
            lines = self._manager.api.last_lines(str(newest["ID"]))
            return NodeStartError(
                f"The task for {who} runs, but does not answer at the ports "
                f"{', '.join(map(str, ports(self._pool, slot)))} of its machine, as seen from "
                f"{self._manager.address.name}. Check the firewalls between them."
                + (f" Its last lines:\n{lines}" if lines else "")
            )
        if waiting.waited_s > _PULL_S:
            look = f"`docker service ps {name_of(self._pool)}`"
            return ProviderError(f"The task for {who} is still {state} after {waiting.waited_s:.0f} s. See {look}.")
        return None


@dataclass(frozen=True, slots=True)
class View:
    """A manager's view of the tasks at one moment.

    Attributes:
        tasks: the tasks of each slot, in order of creation.
        machines: machines of the swarm, by id.
        given_up: ids of tasks that are no longer used.
    """

    tasks: Mapping[int, Sequence[Document]]
    machines: Mapping[str, Document]
    given_up: Collection[str]

    @property
    def running(self) -> dict[int, Document]:
        """The running task of each slot, if its machine is ready."""
        return {slot: task for slot, history in self.tasks.items() if (task := self._running(history)) is not None}

    def _running(self, history: Sequence[Document]) -> Document | None:
        for task in reversed(history):
            if task["Status"]["State"] == "running" and task["DesiredState"] == "running":
                return task if self.machines[task["NodeID"]]["Status"]["State"] == "ready" else None
        return None

    def has_completed(self, slot: int) -> bool:
        """Return whether the slot's newest task has ended with status 0: the engine then starts no other on its own."""
        history = self.tasks.get(slot, ())
        return bool(history) and history[-1]["Status"]["State"] == "complete"

    def should_answer(self, slot: int) -> bool:
        """Return whether a task that can be claimed runs in the slot."""
        return slot in self.running and self.running[slot]["ID"] not in self.given_up

    def waited_for(self) -> str:
        """Return the state of each task, for users."""
        states = []
        for slot, history in self.tasks.items():
            task = history[-1] if history else {}
            machine = self.machines.get(task.get("NodeID", ""))
            place = f" on {name_of_machine(machine)}" if machine else ""
            states.append(f"node {slot - 1}{place}: {task['Status']['State'] if task else 'not there yet'}")
        return "waiting for tasks, " + ", ".join(states)


class Waiting:
    """Measures how long the tasks have been waited for, and how long each running one has not answered."""

    def __init__(self, began: float) -> None:
        self._began, self._silent_since = began, dict[int, float]()

    @property
    def waited_s(self) -> float:
        """Seconds since the first query."""
        return time.monotonic() - self._began

    def silent_s(self, slot: int, *, expected: bool) -> float:
        """Return the seconds that a task has run without an answer; 0 while none is expected."""
        now = time.monotonic()
        if not expected:
            self._silent_since[slot] = now
        return now - self._silent_since.setdefault(slot, now)


class SwarmProcess(ClaimedProcess):
    """A runner in a task of the pool's service; the engine replaces the task as long as the service exists.

    Raises:
        ProviderError: the task has ended.
    """

    ending: ClassVar[str] = RESTART

    def __init__(self, manager: Manager, claimer: TaskClaimer, task: ClaimedTask, launch: Launch) -> None:
        self._manager, self._claimer, self._task = manager, claimer, task
        self._service = name_of(launch.pool)
        super().__init__(launch, task.claim, f"task {task.task[:12]} on {task.machine}")

    def dial(self, address: str) -> socket.socket:
        """Return an encrypted socket to an address that the runner announced."""
        return self._claimer.connect(self._task, address)

    def is_unreachable(self) -> bool:
        """Return whether the manager is lost."""
        return bool(self._manager.why_gone())

    def how_lost(self) -> Exit:
        """Return what the swarm knows about a task that ended without reporting its exit status."""
        deadline = time.monotonic() + _REASON_S
        try:
            while time.monotonic() < deadline:
                tasks = self._manager.api.tasks(self._service)
                task = next((task for task in tasks if task["ID"] == self._task.task), None)
                if task is None:
                    return Exit(code=None, text=f"was removed with service {self._service}")
                code = _exit_code(task)
                if code is not None:
                    return exit_of(code)
                time.sleep(_END_LOOK_S)
        except EngineError:
            pass  # the manager is lost, which is reported below
        gone = self._manager.why_gone()
        return Exit(code=None, text=gone or f"is lost: its connection to {self._task.machine} ended")


def _exit_code(task: Any) -> int | None:
    if task["Status"]["State"] in ("new", "pending", "assigned", "accepted", "preparing", "starting", "running"):
        return None
    code = (task["Status"].get("ContainerStatus") or {}).get("ExitCode")
    return None if code is None else int(code)
