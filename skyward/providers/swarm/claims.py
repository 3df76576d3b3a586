"""The tasks of a pool's service: claimed, which waits until each runs and answers this client, and nodes in them."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from skyward.builder.events import Report, note
from skyward.errors import EngineError, NodeStartError, PoolClosedError, ProviderError
from skyward.nodes.claimed import Claim, ClaimedProcess, claim, end, open_through
from skyward.nodes.container import POOL
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.providers.swarm.checks import address_of, name_of_machine
from skyward.providers.swarm.manager import Document, Manager
from skyward.providers.swarm.service import name_of, of_slot
from skyward.runner.entry.claimed import RESTART, ports
from skyward.system import socket, threading, time
from skyward.system.futures import ThreadPoolExecutor

_LOOK_S = 0.15  # no event tells of tasks; to list those of one service takes a manager 2 ms
_PLACE_S = 15.0  # how long the engine may find no machine for a task before that is an error
_PULL_S = 600.0  # how long it may take until all tasks run, their image's way there included
_ANSWER_S = 30.0  # how long a task that runs may take to answer
_SAY_EVERY_S = 5.0
_AT_ONCE = 16
_FAILURES = 3  # tasks in a row that do not come to run
_BROKEN = ("failed", "rejected")
_REASON_S = 1.5  # how long the swarm may take to tell how a task ended
_END_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that waits to become a node.

    Attributes:
        task: its id.
        slot: its number in the service.
        machine: host name of the machine that it is on.
        address: IP address of that machine in the swarm.
        port: where it listens.
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
        manager: the way to the swarm.
        contexts: the client's identity towards the task of each slot.
        pool: identifier of the pool.
        report: is told what is waited for.
        ended: is set when the pool has ended, for which nobody waits any more.
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
        """Wait until tasks run in so many of these slots, and claim them.

        Args:
            slots: numbers of the tasks in their service, from 1.
            count: how many of them are wanted.
            given_up: ids of tasks that are not to be claimed again; one that still answers is told to end.

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
        """What the manager says of the tasks now."""
        tasks = self._manager.api.tasks(name_of(self._pool))
        if not tasks and not self._manager.api.services(f"{POOL}={self._pool}"):
            raise PoolClosedError(f"Pool {self._pool} was ended by another client: its service is gone.")
        return View({slot: of_slot(tasks, slot) for slot in sorted(slots)}, self._manager.machines(), given_up)

    def _claim(self, slot: int, view: View, given_up: Collection[str]) -> ClaimedTask | None:
        """Claim a task; None if it does not answer yet, or is one that was given up."""
        task = view.running[slot]
        machine = view.machines[task["NodeID"]]
        address = address_of(machine)
        for port in ports(self._pool, slot):
            try:
                found = claim(self._manager.dial(address, port), self._contexts[slot], f"skyward-{self._pool}-{slot}")
            except ssl.SSLCertVerificationError:
                continue  # another program has this port; the task took the next one
            except OSError:
                return None
            if found is None:
                return None
            if task["ID"] in given_up:
                end(found.session, RESTART)
            if found.busy or task["ID"] in given_up:
                found.session.close()
                return None
            return ClaimedTask(str(task["ID"]), slot, name_of_machine(machine), address, port, found)
        return None

    def connect(self, task: ClaimedTask, address: str) -> socket.socket:
        """A socket that leads to one that a node has announced.

        Raises:
            WireError: nothing listens there any more.
        """
        where = f"{address} of the task on {task.machine} ({task.address}:{task.port})"
        dial = partial(self._manager.dial, task.address, task.port)
        name = f"skyward-{self._pool}-{address}"
        return open_through(dial, self._contexts[task.slot], address, where=where, name=name)

    def _restart_all(self) -> None:
        """Start all tasks again if all have ended with status 0, as after the lease of a client that was silent.

        The engine leaves such slots empty until the specification of their task changes, which concerns all slots. So
        nothing is done as long as one of them has another task.
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
        """Raise the error of a task for which waiting is in vain, if those are more than can be missed."""
        trouble = [error for slot in sorted(missing) if (error := self._trouble(view, slot, waiting)) is not None]
        if len(trouble) > can_miss:
            raise trouble[0]

    def _trouble(self, view: View, slot: int, waiting: Waiting) -> ProviderError | None:
        """Why a task will not come; None if it may only need time."""
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
    """What a manager says of tasks at one moment.

    Attributes:
        tasks: of each slot, in the order in which they were made.
        machines: of the swarm, by id.
        given_up: ids of tasks that are no use any more.
    """

    tasks: Mapping[int, Sequence[Document]]
    machines: Mapping[str, Document]
    given_up: Collection[str]

    @property
    def running(self) -> dict[int, Document]:
        """The task of each slot that runs, if its machine is ready."""
        return {slot: task for slot, history in self.tasks.items() if (task := self._running(history)) is not None}

    def _running(self, history: Sequence[Document]) -> Document | None:
        for task in reversed(history):
            if task["Status"]["State"] == "running" and task["DesiredState"] == "running":
                return task if self.machines[task["NodeID"]]["Status"]["State"] == "ready" else None
        return None

    def has_completed(self, slot: int) -> bool:
        """Whether the newest task there has ended with status 0, after which the engine starts no other by itself."""
        history = self.tasks.get(slot, ())
        return bool(history) and history[-1]["Status"]["State"] == "complete"

    def should_answer(self, slot: int) -> bool:
        """Whether a task runs there that can be claimed."""
        return slot in self.running and self.running[slot]["ID"] not in self.given_up

    def waited_for(self) -> str:
        """How far each task is, for people."""
        states = []
        for slot, history in self.tasks.items():
            task = history[-1] if history else {}
            machine = self.machines.get(task.get("NodeID", ""))
            place = f" on {name_of_machine(machine)}" if machine else ""
            states.append(f"node {slot - 1}{place}: {task['Status']['State'] if task else 'not there yet'}")
        return "waiting for tasks, " + ", ".join(states)


class Waiting:
    """How long has been waited for the tasks, and since when each that runs has not answered."""

    def __init__(self, began: float) -> None:
        self._began, self._silent_since = began, dict[int, float]()

    @property
    def waited_s(self) -> float:
        """Seconds since the first look."""
        return time.monotonic() - self._began

    def silent_s(self, slot: int, *, expected: bool) -> float:
        """Seconds that a task has run without an answer; 0 while no answer is expected of it."""
        now = time.monotonic()
        if not expected:
            self._silent_since[slot] = now
        return now - self._silent_since.setdefault(slot, now)


class SwarmProcess(ClaimedProcess):
    """A runner in a task of the pool's service, in whose place the engine puts a new one while the service is there.

    Raises:
        ProviderError: the task has ended.
    """

    ending: ClassVar[str] = RESTART

    def __init__(self, manager: Manager, claimer: TaskClaimer, task: ClaimedTask, launch: Launch) -> None:
        self._manager, self._claimer, self._task = manager, claimer, task
        self._service = name_of(launch.pool)
        super().__init__(launch, task.claim, f"task {task.task[:12]} on {task.machine}")

    def dial(self, address: str) -> socket.socket:
        """A socket that leads, encrypted, to an address that the runner announced."""
        return self._claimer.connect(self._task, address)

    def is_unreachable(self) -> bool:
        """Whether the manager is gone."""
        return bool(self._manager.why_gone())

    def how_lost(self) -> Exit:
        """What the swarm knows of a task that exited without reporting."""
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
            pass  # the manager is gone, which is said below
        gone = self._manager.why_gone()
        return Exit(code=None, text=gone or f"is lost: its connection to {self._task.machine} ended")


def _exit_code(task: Any) -> int | None:
    if task["Status"]["State"] in ("new", "pending", "assigned", "accepted", "preparing", "starting", "running"):
        return None
    code = (task["Status"].get("ContainerStatus") or {}).get("ExitCode")
    return None if code is None else int(code)
