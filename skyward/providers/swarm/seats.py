"""Where the tasks of a pool are, and who waits there: tasks are watched until each has put its station up."""

from __future__ import annotations

import json
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from skyward.build.events import Report, note
from skyward.errors import NodeStartError, PoolClosedError, ProviderError, WireError
from skyward.providers.containers import POOL
from skyward.providers.swarm.api import Document
from skyward.providers.swarm.checks import address_of, name_of_machine
from skyward.providers.swarm.manager import Manager
from skyward.providers.swarm.service import name_of
from skyward.runner.station import GIVE_UP, ports
from skyward.system import socket, threading, time
from skyward.system.futures import ThreadPoolExecutor
from skyward.wire.tls import end_point, plain_end

_LOOK_S = 0.15  # no event tells of tasks; to list those of one service takes a manager 2 ms
_PLACE_S = 15.0  # how long the engine may find no machine for a task before that is an error
_PULL_S = 600.0  # how long it may take until all tasks run, their image's way there included
_STATION_S = 30.0  # how long a task that runs may take to answer
_SAY_EVERY_S = 5.0
_AT_ONCE = 16
_LINE_BYTES = 4096
_FAILURES = 3  # tasks in a row that do not come to run
_BROKEN = ("failed", "rejected")


@dataclass(frozen=True, slots=True)
class Seat:
    """A task that waits to become a node.

    Attributes:
        task: its id.
        slot: its number in the service.
        machine: host name of the machine that it is on.
        address: IP address of that machine in the swarm.
        port: where its station listens.
        free_port: a port there that nobody uses.
        session: the connection by which this client has it for itself.
        channel: what names its TLS certificate, for the handshakes inside.
    """

    task: str
    slot: int
    machine: str
    address: str
    port: int
    free_port: int
    session: socket.socket
    channel: bytes


class Seating:
    """The tasks of one pool.

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

    def take(self, slots: Collection[int], count: int, given_up: Collection[str] = ()) -> dict[int, Seat]:
        """Wait until there are tasks in so many of these slots, and have them for this client.

        Args:
            slots: numbers of the tasks in their service, from 1.
            count: how many of them are wanted.
            given_up: ids of tasks that are not to be taken again; where the engine believes that one still runs, it
                is told to end.

        Raises:
            ProviderError: the engine finds no machine for too many of the tasks, or takes too long.
            NodeStartError: tasks end instead of waiting.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        began = said = time.monotonic()
        seats, trying = dict[int, Seat](), Trying(began)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"skyward-{self._pool}-seat") as threads:
            try:
                while True:
                    view = self._look(set(slots) - set(seats), given_up)
                    tries = [(slot, threads.submit(self._sit, slot, view, given_up)) for slot in view.running]
                    for slot, tried in tries:
                        if (seat := tried.result()) is None:
                            continue
                        if len(seats) < count:
                            seats[slot] = seat
                        else:
                            seat.session.close()
                    if len(seats) >= count:
                        return seats
                    self._check(view, set(slots) - set(seats), trying, can_miss=len(slots) - count)
                    if time.monotonic() - said > _SAY_EVERY_S:
                        said = time.monotonic()
                        self._report(note(view.waited_for()))
                    if self._ended.wait(_LOOK_S):
                        raise PoolClosedError(f"Pool {self._pool} has ended; no task is waited for any more.")
            except BaseException:
                for seat in seats.values():
                    seat.session.close()
                raise

    def _look(self, slots: Collection[int], given_up: Collection[str]) -> View:
        """What the manager says of the tasks now."""
        tasks = self._manager.api.tasks(name_of(self._pool))
        if not tasks and not self._manager.api.services(f"{POOL}={self._pool}"):
            raise PoolClosedError(f"Pool {self._pool} was ended by another client: its service is gone.")
        return View({slot: of_slot(tasks, slot) for slot in sorted(slots)}, self._manager.machines(), given_up)

    def _sit(self, slot: int, view: View, given_up: Collection[str]) -> Seat | None:
        """Have a task for this client; None if it does not answer yet, or is one that was given up."""
        task = view.running[slot]
        machine = view.machines[task["NodeID"]]
        address = address_of(machine)
        for port in ports(self._pool, slot):
            try:
                tls = self._contexts[slot].wrap_socket(self._manager.dial(address, port))
            except ssl.SSLCertVerificationError:
                continue  # another program's port, also at the station's start
            except OSError:
                return None
            try:
                tls.sendall(b"station\n")
                greeting = json.loads(_line(tls))
            except (OSError, ValueError):
                tls.close()
                return None
            shown = end_point(tls.getpeercert(binary_form=True) or b"")
            session = plain_end(tls, f"skyward-{self._pool}-{slot}")
            if task["ID"] in given_up:
                end(session, GIVE_UP)
            if greeting["busy"] or task["ID"] in given_up:
                session.close()
                return None
            name = name_of_machine(machine)
            return Seat(str(task["ID"]), slot, name, address, port, int(greeting["port"]), session, shown)
        return None

    def connect(self, seat: Seat, address: str) -> socket.socket:
        """A socket that leads to one that a node has announced.

        Raises:
            WireError: nothing listens there any more.
        """
        where = f"{address} of the task on {seat.machine} ({seat.address}:{seat.port})"
        try:
            tls = self._contexts[seat.slot].wrap_socket(self._manager.dial(seat.address, seat.port))
            tls.sendall(f"open {address}\n".encode())
            answer = _line(tls)
        except OSError as error:
            raise WireError(f"{where} cannot be reached: {error}.") from error
        if answer != "ok":
            tls.close()
            raise WireError(f"{where} cannot be reached: {answer or 'it has ended.'}")
        return plain_end(tls, f"skyward-{self._pool}-{address}")

    def _check(self, view: View, missing: Collection[int], trying: Trying, can_miss: int) -> None:
        """Raise what will not get better by waiting, if that are more tasks than can be missed."""
        trouble = [error for slot in sorted(missing) if (error := self._trouble(view, slot, trying)) is not None]
        if len(trouble) > can_miss:
            raise trouble[0]

    def _trouble(self, view: View, slot: int, trying: Trying) -> ProviderError | None:
        """What keeps a task from being taken; None if it may only need time."""
        who, history = f"node {slot - 1} of pool {self._pool}", view.tasks[slot]
        newest = history[-1] if history else None
        state = str(newest["Status"]["State"]) if newest else "not there"
        broken = [task for task in history if task["Status"]["State"] in _BROKEN and task["ID"] not in view.given_up]
        silent_s = trying.silent_s(slot, answers=not view.ought_to_answer(slot))
        if newest and state == "pending" and trying.waited_s > _PLACE_S:
            why = newest["Status"].get("Err") or newest["Status"].get("Message")
            return ProviderError(f"The swarm finds no machine for {who}: {why}.")
        if len(broken) >= _FAILURES and newest in broken:
            lines = self._manager.api.last_lines(str(broken[-1]["ID"]))
            told = f"Last lines of one:\n{lines}" if lines else "They printed nothing."
            return NodeStartError(f"The tasks for {who} fail: {broken[-1]['Status'].get('Err')}. {told}")
        if newest and silent_s > _STATION_S:
            lines = self._manager.api.last_lines(str(newest["ID"]))
            return NodeStartError(
                f"The task for {who} runs, and nothing of it answers at the ports "
                f"{', '.join(map(str, ports(self._pool, slot)))} of its machine, as seen from "
                f"{self._manager.address.name}. A firewall between them may be why."
                + (f" Its last lines:\n{lines}" if lines else "")
            )
        if trying.waited_s > _PULL_S:
            look = f"`docker service ps {name_of(self._pool)}`"
            return ProviderError(f"The task for {who} is {state} after {trying.waited_s:.0f} s. See {look}.")
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
        """The task of each slot that runs, if its machine is well."""
        return {slot: task for slot, history in self.tasks.items() if (task := self._running(history)) is not None}

    def _running(self, history: Sequence[Document]) -> Document | None:
        for task in reversed(history):
            if task["Status"]["State"] == "running" and task["DesiredState"] == "running":
                return task if self.machines[task["NodeID"]]["Status"]["State"] == "ready" else None
        return None

    def ought_to_answer(self, slot: int) -> bool:
        """Whether a task that runs there is one to be taken."""
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


class Trying:
    """How long has been waited, and for whom in vain."""

    def __init__(self, began: float) -> None:
        self._began, self._answered = began, dict[int, float]()

    @property
    def waited_s(self) -> float:
        """Seconds since the first look."""
        return time.monotonic() - self._began

    def silent_s(self, slot: int, *, answers: bool) -> float:
        """Seconds that a task has run without an answer; `answers`: none is to be expected of it now."""
        now = time.monotonic()
        if answers:
            self._answered[slot] = now
        return now - self._answered.setdefault(slot, now)


def end(session: socket.socket, how: str) -> None:
    """Have a task end at once, whatever it does: GIVE_UP where the engine is to start another for it, else STOP."""
    try:
        session.sendall(f"{json.dumps({'do': how})}\n".encode())
        session.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has ended


def of_slot(tasks: Sequence[Document], slot: int) -> list[Document]:
    """The tasks that a slot has had, the one of now last."""
    return sorted((task for task in tasks if task.get("Slot") == slot), key=lambda task: str(task["CreatedAt"]))


def _line(tls: ssl.SSLSocket) -> str:
    """What the station says first; it says no more before it is answered."""
    said = b""
    while not said.endswith(b"\n") and len(said) < _LINE_BYTES:
        data = tls.recv(1)
        if not data:
            break
        said += data
    return said.decode(errors="replace").strip()
