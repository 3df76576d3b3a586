"""The client's end of one node: its agent, its workers, and why they ended when they do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from signal import Signals
from typing import Any

from skyward.errors import SkywardError, WireError, WorkerLostError
from skyward.model.spec import Worker
from skyward.pool.callbacks import Callbacks
from skyward.pool.dispatch import Dispatcher, Lost
from skyward.pool.gathering import ALONE, refuse
from skyward.pool.losses import Fate
from skyward.pool.output import Printer
from skyward.pool.shelf import Shelf
from skyward.pool.task import Task
from skyward.pool.worker import WorkerLink
from skyward.providers.base import Exit, Host, Node
from skyward.runner.config import EXIT_DISMISSED
from skyward.system import threading, time
from skyward.system.futures import Future, InvalidStateError
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.handshake import agent_endpoint, connect, worker_endpoint
from skyward.wire.messages import RESULT_HEAD, STDERR, Kind, decode, encode

BEAT_S = 1.0
SILENCE_S = 10.0  # a node that answers no heartbeat for so long is lost
_ASKED = 5  # and so many of them
_REASON_S = 2.0  # how long the reason of a worker's end is waited for; it is usually there within 0.1 s
_DRAIN_S = 1.0  # how long the connections of an ended node's workers may take to end by themselves
_LAST_WORDS_S = 1.0  # how long what an ended node has said is read; it is here already
DISMISSED = "was ended by another client (skyward down)"
SETUP = 0  # id of the SETUP message and of its answer
_DOING = {Fate.WAITED: "waited there", Fate.RAN: "ran there", Fate.MAY_HAVE_RUN: "had been sent there"}
_IN_DOUBT = (
    " Whether {name}() has run is not known, and it is not called again, since its function does not say that it may "
    "run twice (@sky.compute(retries=1))."
)
_unless_closed = suppress(InvalidStateError)  # a pool that is closed has failed the set-ups under way itself


@dataclass(frozen=True, slots=True)
class PoolLink:
    """What a node shares with its pool."""

    dispatcher: Dispatcher
    printer: Printer
    callbacks: Callbacks
    setup: Callable[[NodeLink, WorkerLink], None]  # prepares a worker that was started again, and lets it take calls
    lost: Callable[[WorkerLink], None]  # is told that a worker has ended, after its calls have been
    gone: Callable[[NodeLink], None]  # is told that a node is gone, after its calls have been
    dismissed: Callable[[], None]  # is told that another client ends the pool
    only_data: bool = False  # whether exceptions of its nodes come as text


class NodeLink:
    """A running node. Its `key` is known to it and to this client alone.

    Attributes:
        host: where it is.
        gone: how it ended, None while it lives.
        removed: set when it is gone and nothing is left of it.
        told: the COMPUTE_POOL document it has, "" until it is connected.
    """

    def __init__(self, index: int, host: Host, node: Node, shape: Worker, pool: PoolLink, *, key: bytes) -> None:
        self.index, self.host, self._node, self._shape, self._pool, self._key = index, host, node, shape, pool, key
        self.told = ""
        self.removed = threading.Event()
        self.gone: Exit | None = None
        self.setups: dict[int, Future[None]] = {}
        self._closing = False
        self._changed = threading.Condition()
        self._reports: dict[tuple[int, int], dict[str, Any]] = {}
        self._dumps: dict[tuple[int, int], Future[str]] = {}
        self._steps: dict[int, Future[dict[str, Any]]] = {}  # of finding out whom the node reaches, by number
        self._numbers = itertools.count()
        self._workers: dict[int, WorkerLink] = {}
        self._shelf = Shelf(shape.processes)
        self._readers = 0  # of its workers, that have not come to their end
        self._agent: Connection | None = None
        self._agent_reader: threading.Thread | None = None
        self._unanswered: list[float] = []  # when it was asked for signs of life, since the last one
        self._verdict: str | None = None
        self._place = ""  # where it is, if that has changed since it was started

    def open(self, timeout_s: float) -> list[WorkerLink]:
        """Wait for the node's announcement and connect to its agent and workers.

        Raises:
            NodeStartError, WireError, AuthenticationError, VersionError: as their names say.
        """
        announced = self._node.wait_ready(timeout_s)
        self._agent = connect(
            self._node.connect(announced.agent), self._key, agent_endpoint(self.index), self._node.channel
        )
        self._agent_reader = self._spawn(self._read_agent, self._agent)
        return [self._open_worker(number, 0, address) for number, address in enumerate(announced.workers)]

    def _open_worker(self, number: int, generation: int, address: str) -> WorkerLink:
        endpoint = worker_endpoint(self.index, number, generation)
        connection = connect(self._node.connect(address), self._key, endpoint, self._node.channel)
        rank = self.index * self._shape.processes + number
        worker = WorkerLink(self.index, number, rank, generation, self._shape.slots, connection)
        worker.is_one_of_several_ranks = self._shape.ranks > 1
        worker.shelf = self._shelf
        self._workers[number] = worker
        if self._closing:  # after the line above, since what ends the node first says so and then settles its workers
            connection.close()
            raise WireError(f"Node {self.index} is being ended.")
        if self._place:
            worker.post_frame(Frame(Kind.PLACE, 0, self._place.encode()))
            worker.flush()
        self.setups[rank] = Future()
        with self._changed:
            self._readers += 1
        self._spawn(self._read_worker, worker)
        return worker

    def _spawn(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=f"skyward-node-{self.index}", daemon=True)
        thread.start()
        return thread

    # readers ---------------------------------------------------------------------------------------------------

    def _read_worker(self, worker: WorkerLink) -> None:
        dispatcher = self._pool.dispatcher
        try:
            while frames := worker.connection.receive():
                calls = [f for f in frames if f.kind != Kind.OUTPUT and f.id != SETUP]
                if len(calls) != len(frames):
                    for frame in frames:
                        if frame.kind == Kind.OUTPUT:
                            self._show(worker, worker.index, frame)
                        elif frame.id == SETUP:
                            self._on_setup(worker, frame)
                if calls:
                    dispatcher.on_frames(worker, calls)
        except WireError:
            pass  # its end is what matters; the agent and the host know the reason
        finally:  # also when this side fails: nobody may wait for answers that nobody reads
            worker.drained = not worker.connection.stopped_reading
            worker.connection.close()
            with self._changed:
                worker.hung_up = True
                self._changed.notify_all()
            if not self._closing:
                self._settle(worker)
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def _settle(self, worker: WorkerLink) -> None:
        """Learn why a worker is gone, and tell those who wait for it."""
        report = self._reason(worker)
        setup = self.setups[worker.rank]
        if not setup.done() and self._workers[worker.index] is worker:  # not that of the one that has replaced it
            with _unless_closed:
                setup.set_exception(self._lost(worker, report, "its plugins were set up"))
        is_known = worker.drained and (report is not None or self._end_is_known())
        self._pool.dispatcher.lose(worker, self._lost_running(worker, report), is_known=is_known)
        self._pool.lost(worker)

    def _end_is_known(self) -> bool:
        """Whether the node has ended, and somebody who saw it has said how: it was not given up for its silence."""
        gone = self.gone
        return gone is not None and self._verdict is None and not (gone.code is None and gone.signal is None)

    def _read_agent(self, agent: Connection) -> None:
        try:
            while frames := agent.receive():
                self._unanswered = []
                for frame in frames:
                    self._on_agent(frame)
        except WireError:
            pass  # its end is what matters
        finally:  # also when this side fails: a node that nobody hears is of no use
            agent.close()
            if not self._closing:
                self._on_gone()

    def _on_agent(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PONG:
                rtt_s = (time.monotonic_ns() - frame.id) / 1e9
                for worker in self._workers.values():
                    worker.rtt_s = min(worker.rtt_s, rtt_s) if worker.rtt_s else rtt_s
            case Kind.WORKER_OUTPUT:
                self._show(self._workers.get(frame.id), frame.id, frame)
            case Kind.WORKER_EXIT:
                report = decode(frame.head)
                with self._changed:
                    self._reports[report["worker"], report["generation"]] = report
                    self._changed.notify_all()
                ended = self._workers.get(report["worker"])
                if ended is not None and ended.generation == report["generation"] and not ended.hung_up:
                    self._spawn(self._hang_up, ended)
            case Kind.DUMPED:
                report = decode(frame.head)
                self._dumps.pop((report["worker"], report["generation"]), Future()).set_result(report["text"])
            case Kind.DISMISSED:
                self._verdict = DISMISSED
                self._pool.dismissed()
            case Kind.REACHED:
                self._steps.pop(frame.id, Future()).set_result(decode(frame.head))
            case Kind.WORKER_UP:
                self._spawn(self._on_worker_up, decode(frame.head))

    def _hang_up(self, worker: WorkerLink) -> None:
        """End the connection of a worker that has ended, should a process that it forked keep it open."""
        with self._changed:
            self._changed.wait_for(lambda: worker.hung_up, _DRAIN_S)
        worker.connection.stop_reading()

    def _on_worker_up(self, news: dict[str, Any]) -> None:
        """A worker that ended has been started again: connect, and let the pool set it up."""
        try:
            worker = self._open_worker(news["worker"], news["generation"], news["address"])
            self._pool.setup(self, worker)
        except SkywardError as error:
            if not self._closing and self.gone is None:
                self.declare_lost(f"its worker {news['worker']} was started again but is of no use: {error}")

    def _on_gone(self) -> None:
        wait_s = _REASON_S if self._verdict is None else 0.0
        exit_ = self._node.wait_exit(wait_s) or Exit(code=None, text="its agent closed the connection")
        if self._verdict is not None:
            exit_ = Exit(code=exit_.code, text=self._verdict)
        elif exit_.code == EXIT_DISMISSED:
            exit_ = Exit(code=exit_.code, text=DISMISSED)
        with self._changed:
            self.gone = exit_
            self._changed.notify_all()
        removal = self._spawn(self._remove)
        self._await_readers()
        removal.join()
        self.removed.set()
        self._pool.gone(self)

    def _await_readers(self) -> None:
        """Let the workers' readers handle everything that has arrived, and settle the rest of the calls."""
        with self._changed:
            if self._verdict is None:  # the processes have ended, so the connections do as soon as all is read
                self._changed.wait_for(lambda: not self._readers, _DRAIN_S)
            while self._readers:  # none of them blocks on anything but its connection
                for worker in self.workers:
                    worker.connection.stop_reading()
                self._changed.wait(_DRAIN_S)

    def _remove(self) -> None:
        try:
            self._node.remove()
        except SkywardError:
            pass  # the pool's end tries again, and reports

    def _show(self, worker: WorkerLink | None, number: int, frame: Frame) -> None:
        text = str(memoryview(frame.head)[1:], "utf-8", "replace")
        if worker is not None:  # a worker may write before its connection is made
            worker.tail.extend(text.splitlines())
        several = self._shape.ranks > 1
        place = f"rank {self.index * self._shape.ranks + number}" if several else str(self.index)
        self._pool.printer.put(place, text, error=frame.head[0] == STDERR)

    def _on_setup(self, worker: WorkerLink, frame: Frame) -> None:
        setup = self.setups[worker.rank]
        if frame.kind == Kind.GATHER and worker.gathering is not None:
            worker.gathering.give(worker, frame)
        elif frame.kind == Kind.GATHER:
            refuse(worker, frame, ALONE)
        elif frame.kind == Kind.READY:
            with _unless_closed:
                setup.set_result(None)
        else:
            self._pool.callbacks.submit(
                "the error of a plugin", partial(_fail_setup, setup, worker, frame, only_data=self._pool.only_data)
            )

    # why a worker ended ----------------------------------------------------------------------------------------

    def _reason(self, worker: WorkerLink) -> dict[str, Any] | None:
        """The agent's report of a worker's end; None when the whole node is gone."""
        key = (worker.index, worker.generation)
        with self._changed:
            known = self._changed.wait_for(lambda: key in self._reports or self.gone is not None, _REASON_S)
            report = self._reports.get(key)
        if not known:
            self.declare_lost("its worker's connection ended and its agent does not say why")
            with self._changed:
                self._changed.wait_for(lambda: self.gone is not None, 2 * _REASON_S)
        return report if self.gone is None else None

    def _lost_running(self, worker: WorkerLink, report: dict[str, Any] | None) -> Lost:
        def lost(task: Task, fate: Fate) -> WorkerLostError:
            name = task.function.name
            doubt = _IN_DOUBT.format(name=name) if fate is Fate.MAY_HAVE_RUN else ""
            return self._lost(worker, report, f"{name}() {_DOING[fate]}", doubt)

        return lost

    def _lost(self, worker: WorkerLink, report: dict[str, Any] | None, doing: str, doubt: str = "") -> WorkerLostError:
        facts: dict[str, Any] = report or {}
        if report is None:
            gone = self.gone or Exit(code=None)
            facts = {"code": gone.code, "signal": gone.signal, "oom": gone.oom}
            subject = f"Node {self.index} was lost"
            how = gone.text or ended_in_words(gone.code, gone.signal, gone.oom)
        else:
            rank = "" if worker.is_one_of_several_ranks else f" (rank {worker.rank})"  # the former name it themselves
            subject = f"The worker process on {worker}{rank} ended"
            how = ended_in_words(facts.get("code"), facts.get("signal"), bool(facts.get("oom")))
            if worker.ordered_to_end:
                how = f"the pool ended it, because {worker.ordered_to_end}"
        heard = tuple(worker.tail)
        lines = [*heard, *(line for line in str(facts.get("log") or "").splitlines() if line not in heard)][-20:]
        message = f"{subject} while {doing}: {how}.{doubt}"
        if lines:
            message += " Its last output:\n" + "\n".join(f"  {line}" for line in lines)
        return WorkerLostError(
            message,
            node=self.index,
            rank=worker.rank,
            exit_code=facts.get("code"),
            signal=facts.get("signal"),
            oom=bool(facts.get("oom")),
            log="\n".join(lines),
        )

    # what the pool asks of it ----------------------------------------------------------------------------------

    def beat(self) -> None:
        """Ask for a sign of life; declare the node lost when it has been asked often enough for too long a time.

        Before the first question it owes no answer, however long its set-up took; and a client that was stopped itself
        has not asked.
        """
        if self.gone is not None or self._agent is None or self._closing:
            return
        now = time.monotonic()
        asked = self._unanswered  # the reader replaces the list
        if len(asked) >= _ASKED and now - asked[0] > SILENCE_S:
            self.declare_lost(f"it has answered nothing for {now - asked[0]:.0f} s")
            return
        asked.append(now)
        self._tell(Frame(Kind.PING, time.monotonic_ns()))

    def move(self, document: str) -> None:
        """Tell the node its new place, for what its workers do after their calls of now."""
        self._place = document
        frame = Frame(Kind.PLACE, 0, document.encode())
        self._tell(frame)
        for worker in self.workers:  # one that is gone needs no word: the next one is told when it connects
            worker.post_frame(frame)
            worker.flush()

    def kill(self, worker: WorkerLink) -> None:
        """End a worker at once; the agent starts it again."""
        self._tell(Frame(Kind.KILL, 0, encode({"worker": worker.index, "generation": worker.generation})))

    @property
    def address(self) -> str:
        """At which the other nodes reach it."""
        return self.host.address

    @property
    def workers(self) -> tuple[WorkerLink, ...]:
        """The workers of the node as they are now, also those that are not set up yet."""
        return tuple(self._workers.values())

    def dump(self, worker: WorkerLink) -> Future[str]:
        """Let the agent find out where a worker is that does not answer; the frames as faulthandler writes them."""
        dumped = self._dumps[worker.index, worker.generation] = Future[str]()
        self._tell(Frame(Kind.DUMP, 0, encode({"worker": worker.index, "generation": worker.generation})))
        return dumped

    def reach(self, order: dict[str, Any]) -> Future[dict[str, Any]]:
        """Let the agent do a step of finding out which nodes reach each other (see `partition`)."""
        number = next(self._numbers)
        answer = self._steps[number] = Future[dict[str, Any]]()
        self._tell(Frame(Kind.REACH, number, encode(order)))
        return answer

    def declare_lost(self, verdict: str) -> None:
        """Give the node up; its calls are settled and it is removed."""
        self._verdict = self._verdict or verdict
        if self._agent is not None:
            self._agent.close()

    def leave(self, grace_s: float) -> None:
        """As `close`, of a node that runs nothing any more while the pool goes on."""
        try:
            self.close(grace_s)
        except SkywardError:
            pass  # its host may be gone already; the pool's end tries again, and reports
        self._strike_off("was seen off")

    def discard(self) -> None:
        """End a node that is of no use, while the pool goes on: one of its workers may have taken calls already.

        Raises:
            SkywardError: what was begun of it cannot be removed.
        """
        try:
            self.close(0.0)
        finally:
            self._strike_off("could not be used")

    def _strike_off(self, text: str) -> None:
        """Settle the calls of a node that was closed."""
        self.gone = Exit(code=0, text=text)
        for worker in self.workers:
            self._pool.dispatcher.lose(worker, self._lost_running(worker, None), is_known=True)

    def close(self, grace_s: float) -> None:
        """Let the node leave its plugins and end; whatever is not gone after `grace_s` is removed."""
        self._closing = True
        try:
            if self._agent is not None and self.gone is None:
                self._tell(Frame(Kind.SHUTDOWN, 0, encode({"grace_s": grace_s})))
                if self._node.wait_exit(grace_s + 1.0) and self._agent_reader is not None:
                    self._agent_reader.join(_LAST_WORDS_S)
        finally:
            for worker in self._workers.values():
                worker.connection.close()
            if self._agent is not None:
                self._agent.close()
            self._node.remove()

    def let_go(self) -> None:
        """In a forked process: close its copies of the descriptors, and nothing else."""
        for connection in (self._agent, *(worker.connection for worker in self._workers.values())):
            if connection is not None:
                connection.abandon()

    def _tell(self, frame: Frame) -> None:
        try:
            assert self._agent is not None
            self._agent.post(frame)
        except WireError:
            pass  # the agent's reader notices the same and settles what depends on it


def _fail_setup(setup: Future[None], worker: WorkerLink, frame: Frame, *, only_data: bool) -> None:
    """Unpickle what a plugin raised: not in the thread that reads, since the exception's class is the user's."""
    error = payload.load_exception(bytes(memoryview(frame.head)[RESULT_HEAD.size :]), only_data=only_data)
    with _unless_closed:
        setup.set_exception(payload.noted(error, f"raised while the plugins were set up on {worker}"))


def ended_in_words(code: int | None, signal: int | None, oom: bool) -> str:
    """How a process ended, for an error message."""
    if oom:
        return "the kernel killed it for want of memory; give the node more (memory_gb=), or the call less to hold"
    if signal:
        try:
            name = Signals(signal).name
        except ValueError:
            name = "unknown"
        return f"it was killed by signal {signal} ({name})"
    return f"it left with exit status {code}" if code is not None else "the reason is not known"
