"""What is true in a simulation, whatever the pool believes: who runs, what has run, and what must never be."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.sim import kernel, net
from tests.sim.kernel import Process, SimExit, Thread
from tests.sim.plan import Fault, Plan

LEASE_SLACK_S = 20.0  # so much later than its lease a node may end
EXIT_LEASE = 3
_GIVEN_UP_S, _SETTLED_S = 17.0, 21.0  # within which a node that does not answer is, and its calls are
NEVER_BLOCK = {"NodeClient._read_worker", "NodeClient._read_agent", "Timers._run", "NodeManager._beat", "Inbox._watch"}
_UNHEEDING = {"hold", "together"}  # such calls do not, or have all ranks started afresh
_LINE = re.compile(r"\] L (\d+) (\d+) (\d+)\n")


@dataclass
class Run:
    """A run of a call, in a worker."""

    token: int
    rank: int | None
    process: Process
    began: float
    ended: float | None = None
    failed: float | None = None


class World:
    """One simulation's truth."""

    def __init__(self, k: kernel.Kernel, plan: Plan) -> None:
        self.k, self.plan = k, plan
        self.latency_s, self.start_s, self.containers = plan.latency_s, plan.start_s, plan.containers
        self.nodes: list[Any] = []
        self.runs: dict[int, list[Run]] = defaultdict(list)
        self.printed: list[str] = []
        self.client = Process(k, "client:main")
        self.released = False
        self.closing = False
        self.pool: Any = None
        self.provider_calls = 0
        self.events: dict[str, int] = defaultdict(int)  # how often each has happened
        self.faults = 0  # that have happened
        self.node_faults = 0  # those that a whole node was hit by, or the client
        self.stopped_client_s = 0.0
        self.stops: dict[str, int] = {}  # how often each machine was stopped
        self.on_close: Callable[[], None] = _nothing
        self.cancelled: dict[int, float] = {}  # when each call was cancelled
        self.hit: set[str] = set()  # machines that something was done to
        self._serial = 0
        self.watched: list[Thread] = []
        k.on_idle = self._check_blocked

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    # what functions and output tell ------------------------------------------------------------------------------

    def begins(self, token: int, rank: int | None = None) -> int:
        me = self.k.enter()
        run = Run(token, rank, me.process, self.k.now)
        self.runs[token].append(run)
        self.k.note("begins", token, me.process.name)
        self.event("begins")
        if self.k.now - self.cancelled.get(token, self.k.now) > 2.0 + 20 * self.latency_s and not self.faults:
            self.k.fail(f"call {token} began {self.k.now - self.cancelled[token]:.1f} s after it had been cancelled")
        return len(self.runs[token]) - 1

    def ends(self, token: int, run: int) -> None:
        self.k.enter()
        self.runs[token][run].ended = self.k.now

    def fails(self, token: int, run: int) -> None:
        self.k.enter()
        self.runs[token][run].failed = self.k.now

    def prints(self, text: str) -> None:
        self.k.enter()
        self.printed.append(text)

    @contextmanager
    def provider_call(self, name: str) -> Iterator[None]:
        """A call of the provider, which takes time, may fail and may be the client's last."""
        from skyward.errors import EngineError

        k = self.k
        self.provider_calls += 1
        self.event(name)
        way = self.plan.failing_calls.get(self.provider_calls, "")
        if self.events[name] == 1:
            way = self.plan.failing_calls.get(name, way)
        k.note("provider", name, way)
        if way:
            self.node_faults += 1
        if way == "crash-before":
            self.client.end(signal=9)
            k.enter()
        k.sleep(0.001 + 0.01 * k.rng.random() + (5.0 if way == "slow" else 0.0))
        if way == "fail-before":
            raise EngineError(f"{name} failed")
        yield
        if way == "crash-after":
            self.client.end(signal=9)
            k.enter()
        if way == "fail-after":
            raise EngineError(f"{name} failed, after all")

    # faults ----------------------------------------------------------------------------------------------------

    def event(self, name: str) -> None:
        """Something has happened that a fault may follow on: a call of the provider, a set-up, a run, a leave."""
        self.events[name] += 1
        for fault in self.plan.faults:
            if fault.after == (name, self.events[name]):
                self.k.after(fault.at_s, partial(self.happen, fault))

    def happen(self, fault: Fault) -> None:
        """Let something go wrong; called in no thread in particular."""
        k = self.k
        if not self.client.alive or (self.closing and fault.kind != "kill-client"):
            return
        nodes = [node for node in self.nodes if node.process.alive]
        k.note("fault", fault.kind, fault.seconds)
        if fault.kind == "kill-client":
            self.client.end(signal=9)
            return
        if fault.kind == "stop-client":
            self.faults += 1
            self.node_faults += 1
            self.stopped_client_s += fault.seconds
            self.client.stop()
            k.after(fault.seconds, self.client.go_on)
            return
        if fault.kind == "close":
            self.faults += 1
            self.node_faults += 1
            k.spawn(self.client, "close", self.on_close, "close")
            return
        if not nodes:
            return
        node = nodes[int(fault.chance * len(nodes))]
        self.faults += 1
        if fault.kind in {"kill-worker", "stop-worker"}:
            self._hit_worker(fault, node)
        else:
            self.node_faults += 1
            self.hit.add(node.machine)
            self._hit_node(fault, node)

    def _hit_worker(self, fault: Fault, node: Any) -> None:
        workers = [process for process in node.workers if process.alive]
        if not workers:
            return
        self.hit.add(node.machine)
        self.stops[node.machine] = self.stops.get(node.machine, 0) + 1  # what its agent tells of that is a sign of life
        worker = workers[int(fault.chance * 97) % len(workers)]
        if fault.kind == "kill-worker":
            worker.end(signal=9)
        else:
            worker.stop()
            self.k.after(fault.seconds, worker.go_on)

    def _hit_node(self, fault: Fault, node: Any) -> None:
        there, back = net.N.link("client", node.machine), net.N.link(node.machine, "client")
        if fault.kind == "kill-agent":
            node.process.end(signal=9)
        elif fault.kind == "kill-node":
            node.kill()
        elif fault.kind == "term-node":
            node.tell(15)
        elif fault.kind == "stop-node":
            for process in (node.process, *node.workers):
                process.stop()
                self.k.after(fault.seconds, process.go_on)
            self._expect_lost(node, fault.seconds)
        elif fault.kind == "reset":
            for process in (node.process, *node.workers):
                for sock in list(process.sockets.values()):
                    sock.break_off()
        elif fault.kind == "slow":
            there.latency_s = back.latency_s = 0.5
        elif fault.kind == "leave":
            self._leave(node, fault.seconds)
        else:
            self._cut(
                node, [link for link, kind in ((there, "cut-from"), (back, "cut-to")) if fault.kind != kind], fault
            )

    def _cut(self, node: Any, links: list[net.Link], fault: Fault) -> None:
        for link in links:
            link.cut(fault.seconds)
            self.k.after(fault.seconds, link.heal)
        self._expect_lost(node, fault.seconds)

    def _leave(self, node: Any, left_s: float) -> None:
        from skyward.providers.base import PreemptionNotice

        news = PreemptionNotice(host=node.host, text="will be reclaimed", left_s=left_s)
        pool = self.pool
        if pool is not None and hasattr(pool, "_manager"):
            self.k.spawn(self.client, "notice", lambda: pool._manager.preempted(news), "notice")
            self.event("leaving")
            self.k.after(left_s + 1.0, node.kill)

    def _expect_lost(self, node: Any, seconds: float) -> None:
        """A node that does not answer is given up within its time, and its calls are settled then."""
        self.stops[node.machine] = number = self.stops.get(node.machine, 0) + 1

        def look(after_s: float) -> None:
            pool = self.pool
            if self.stops[node.machine] != number:
                return  # it has been stopped anew, and may have gone on in between
            if self.closing or pool is None or not self.client.alive or self.stopped_client_s:
                return
            for link in [slot.node for slot in pool._table.slots if slot.node is not None]:
                is_settled = link.gone is not None and (after_s < _SETTLED_S or not link._readers)
                if link._node is node and not is_settled and not link._closing and link.is_connected:
                    self.k.fail(f"{node.machine} has not answered for {after_s:g} s and is not given up")

        for after_s in (_GIVEN_UP_S, _SETTLED_S):
            if seconds > after_s:
                self.k.after(after_s, partial(look, after_s))

    # invariants ------------------------------------------------------------------------------------------------

    def _check_blocked(self) -> None:
        """Time is about to pass: nobody of those who may not block waits for a peer to take what is sent."""
        for thread in self.k.threads:
            if thread.parked and thread.role in NEVER_BLOCK and not thread.dead:
                chain = [thread]
                while chain[-1].what[0] == "lock" and chain[-1].parked:
                    holder = chain[-1].what[1].holder
                    if holder is None or holder in chain:
                        break
                    chain.append(holder)
                if chain[-1].what[0] == "send" and chain[-1].parked and not chain[-1].process.stopped:
                    self.k.fail(f"{thread.role} waits for a peer that does not read: {' -> '.join(map(repr, chain))}")

    def check_lease(self, node: Any) -> None:
        """A node has ended by its lease: right only if its client was not there."""
        well = self.client.alive and not (self.stopped_client_s or self.closing or node.machine in self.hit)
        if node.process.code != EXIT_LEASE or not well or self.plan.failing_calls:
            return
        self.k.fail(f"{node.machine} ended by its lease, although its client was there and well")

    def check_kill(self, process: Process) -> None:
        """The pool has a worker ended: right only if a call in it does not heed that it is to stop."""
        kinds = {op.kind for ops in self.plan.callers for op in ops}
        if self.plan.slots == 1 and not (self.faults or self.node_faults or self.closing or kinds & _UNHEEDING):
            self.k.fail(f"the pool had {process.name} ended, whose calls end when they are told to")

    def check_runs(self, retries: dict[int, int]) -> None:
        """No call ran more often than it may."""
        for token, runs in self.runs.items():
            by_rank: dict[int | None, int] = defaultdict(int)
            for run in runs:
                by_rank[run.rank] += 1
            for rank, count in by_rank.items():
                if count > 1 + retries[token]:
                    where = ", ".join(f"{run.process.name} at {run.began - 1000:.3f}" for run in runs)
                    which = f" on rank {rank}" if rank is not None else ""
                    self.k.fail(f"call {token} ran {count} times{which}, with retries={retries[token]}: {where}")

    def check_output(self, succeeded: dict[int, int]) -> None:
        """Each line once, in order; all of those of calls that ended well."""
        seen: dict[tuple[int, int], list[int]] = defaultdict(list)
        for token, run, number in _LINE.findall("".join(self.printed)):
            seen[int(token), int(run)].append(int(number))
        for (token, run), numbers in seen.items():
            if numbers != list(range(len(numbers))):
                self.k.fail(f"the lines of call {token} (run {run}) came as {numbers}")
        for token, lines in succeeded.items():
            best = max((len(numbers) for (of, _), numbers in seen.items() if of == token), default=0)
            if best < lines and not self.stopped_client_s:
                self.k.fail(f"of the {lines} lines of call {token}, which returned, {best} were printed")

    def check_nothing_left(self) -> None:
        """The client is gone for longer than the lease."""
        for node in self.nodes:
            if node.alive:
                alive = [process.name for process in (node.process, *node.workers) if process.alive]
                self.k.fail(f"{', '.join(alive)} still there after the lease of {self.plan.lease_s:g} s")


def _nothing() -> None:
    pass


W: World = None  # type: ignore[assignment]  # of the simulation that runs now
__all__ = ["NEVER_BLOCK", "SimExit", "World"]
