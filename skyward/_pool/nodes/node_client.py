"""Client side of one node: connections to its agent and workers, and the reasons of their ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from skyward._pool import named
from skyward._pool.background import Callbacks
from skyward._pool.console import Printer
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.nodes.worker_client import WorkerClient, WorkerOutput, log_level
from skyward._pool.services import ALONE, refuse
from skyward._pool.signals import RECEIVER
from skyward.errors import SkywardError, WireError
from skyward.model.instance import SETUP
from skyward.model.spec import Worker
from skyward.nodes.node import Exit, Host, Node
from skyward.records.pools import PoolRecord
from skyward.system import socket, threading, time
from skyward.system.collector import collected, uncollected
from skyward.system.futures import Future, InvalidStateError
from skyward.system.futures import TimeoutError as FutureTimeoutError
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.handshake import agent_endpoint, connect, worker_endpoint
from skyward.wire.messages import RESULT_HEAD, Kind, decode, encode

BEAT_S = 1.0
SILENCE_S = 10.0  # a node that answers no heartbeat for this long is lost
_ASKED = 5  # and if at least this many heartbeats are unanswered
_REASON_S = 2.0  # limit of the wait for the reason of a worker's end, which usually arrives within 0.1 s
_DRAIN_S = 1.0  # how long the connections of an ended node's workers may take to end
_ENDED_S = 10.0  # how long a kept node may take to end workers that do not exit on request
_LAST_WORDS_S = 1.0  # limit for reading the last messages of an ended node, which have arrived already
DISMISSED = "was ended by another client (skyward down)"
_unless_closed = suppress(InvalidStateError)  # closing a pool fails running set-ups


@dataclass(frozen=True, slots=True)
class PoolLink:
    """Objects and callbacks of a pool that its nodes use."""

    dispatcher: Dispatcher
    printer: Printer
    callbacks: Callbacks
    record: PoolRecord
    worker_started: Callable[[NodeClient, WorkerClient], None]  # sets up a restarted worker
    worker_lost: Callable[[WorkerClient], None]  # called after a worker has ended and its calls are settled
    node_gone: Callable[[NodeClient], None]  # called after a node is lost and its calls are settled
    dismissed: Callable[[], None]  # called when another client has ended the pool
    secrets: tuple[str, ...] = field(default=(), repr=False)  # values that its nodes mask in their output


class NodeClient:
    """A running node. Its `key` is known only to it and to this client.

    Attributes:
        host: its host.
        gone: how it ended; None while it runs.
        removed: set when it has ended and is completely removed.
        document: the COMPUTE_POOL document that it has.
        agent: address of its agent; "" until that is known.
    """

    def __init__(
        self,
        index: int,
        host: Host,
        node: Node,
        shape: Worker,
        pool: PoolLink,
        *,
        key: bytes,
        document: str,
        order: dict[str, Any] | None,
    ) -> None:
        self.index, self.host, self._node, self._shape, self._pool, self._key = index, host, node, shape, pool, key
        self._output = WorkerOutput(index, shape, pool)
        self.document, self.agent, self._order = document, "", order
        self._kept = Future[bool]()
        self.removed = threading.Event()
        self.gone: Exit | None = None
        self.setups: dict[int, Future[None]] = {}
        self._closing = False
        self._changed = threading.Condition()
        self._reports: dict[tuple[int, int], dict[str, Any]] = {}
        self._answers: dict[object, Future[Any]] = {}  # those of the agent that are awaited
        self._numbers = itertools.count()
        self._workers: dict[int, WorkerClient] = {}
        self._readers = 0  # number of threads that read from its workers
        self._agent: Connection | None = None
        self._agent_reader: threading.Thread | None = None
        self._unanswered: list[float] = []  # times of heartbeats since the last answer
        self._lost_reason: str | None = None

    def open(self, timeout_s: float) -> list[WorkerClient]:
        """Wait for the node's announcement and connect to its agent and workers.

        Raises:
            NodeStartError, WireError, AuthenticationError, VersionError: see these classes.
        """
        announced = self._node.wait_ready(timeout_s)
        self._agent = connect(
            self._node.connect(announced.agent), self._key, agent_endpoint(self.index), self._node.channel
        )
        self.agent = announced.agent
        workers = [(0, address) for address in announced.workers]
        if self._order is not None:
            workers = named.take(self._agent, self._order, timeout_s)
        self._agent_reader = self._spawn(self._read_agent, self._agent)
        if self._pool.secrets or self._order is not None:  # replaces the previous client's values
            self._post(Frame(Kind.MASK, 0, encode({"values": self._pool.secrets})))
        return [self._open_worker(number, *worker) for number, worker in enumerate(workers)]

    def _open_worker(self, number: int, generation: int, address: str) -> WorkerClient:
        endpoint = worker_endpoint(self.index, number, generation)
        connection = connect(self._node.connect(address), self._key, endpoint, self._node.channel)
        rank = self.index * self._shape.processes + number
        assert self._agent is not None
        worker = WorkerClient(self.index, number, rank, generation, self._shape.slots, connection, self._agent)
        worker.is_one_of_several_ranks = self._shape.ranks > 1
        self._workers[number] = worker
        if self._closing:  # checked after that line: closing sets the flag first, then settles the workers
            connection.close()
            raise WireError(f"Node {self.index} is being ended.")
        worker.post_frame(Frame(Kind.LOGGING, 0, encode({"level": log_level()})))
        worker.post_frame(Frame(Kind.PLACE, 0, self.document.encode()))  # it may have changed while the worker started
        worker.flush()
        self.setups[rank] = Future()
        with self._changed:
            self._readers += 1
        self._spawn(self._read_worker, worker)
        return worker

    def _spawn(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=f"{RECEIVER}{self.index}", daemon=True)
        thread.start()
        return thread

    # readers ---------------------------------------------------------------------------------------------------

    def _read_worker(self, worker: WorkerClient) -> None:
        try:
            with uncollected:  # a destructor that waited for a result here would wait for ever
                worker.connection.while_waiting = collected
                while frames := worker.connection.receive():
                    self._handle(worker, frames)
        except WireError:
            pass  # `_settle` asks agent and host for the reason
        finally:  # even if this thread fails, since calls must not wait for answers that are not read
            worker.all_received = not worker.connection.stopped_reading
            worker.connection.close()
            with self._changed:
                worker.hung_up = True
                self._changed.notify_all()
            if not self._closing:
                self._settle(worker)
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def _handle(self, worker: WorkerClient, frames: list[Frame]) -> None:
        calls = [f for f in frames if f.kind != Kind.OUTPUT and f.id != SETUP and f.kind != Kind.LOG]
        if len(calls) != len(frames):
            for frame in frames:
                if frame.kind == Kind.OUTPUT:
                    self._output.show(worker, frame)
                elif frame.kind == Kind.LOG:
                    self._output.log(worker, frame)
                elif frame.id == SETUP:
                    self._on_setup(worker, frame)
        if calls:
            self._pool.dispatcher.on_frames(worker, calls)

    def _settle(self, worker: WorkerClient) -> None:
        """Determine why a worker ended, and settle its calls and its set-up."""
        report = self._reason(worker)
        if report is not None:
            facts = {name: report[name] for name in ("code", "signal", "oom")}
            self._pool.record.event("worker_lost", node=self.index, rank=worker.rank, **facts)
        setup = self.setups[worker.rank]
        if not setup.done() and self._workers[worker.index] is worker:  # not that of its replacement
            heard, log = tuple(worker.lines.get(None, ())), str(report["log"]) if report else ""
            lines = [*heard, *(line for line in log.splitlines() if line not in heard)]
            with _unless_closed:
                setup.set_exception(worker.lost(report, self.gone, "its plugins were set up", lines))
        is_known = worker.all_received and (report is not None or self._end_is_known())
        self._pool.dispatcher.lose(worker, worker.lost_running(report, self.gone), is_known=is_known)
        self._pool.worker_lost(worker)

    def _end_is_known(self) -> bool:
        """Return whether the node has ended in a known way, and was not just declared lost."""
        gone = self.gone
        return gone is not None and self._lost_reason is None and not (gone.code is None and gone.signal is None)

    def _read_agent(self, agent: Connection) -> None:
        try:
            while frames := agent.receive():
                self._unanswered = []
                for frame in frames:
                    self._on_agent(frame)
        except WireError:
            pass  # `_on_gone` asks the host for the reason
        finally:  # even if this thread fails, since a node whose messages are not read is unusable
            agent.close()
            with _unless_closed:
                self._kept.set_result(False)
            if not self._closing:
                self._on_gone()

    def _on_agent(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PONG:
                rtt_s = (time.monotonic_ns() - frame.id) / 1e9
                for worker in self._workers.values():
                    worker.rtt_s = min(worker.rtt_s, rtt_s) if worker.rtt_s else rtt_s
            case Kind.WORKER_OUTPUT:
                self._output.take(self._workers.get(frame.id), frame)
            case Kind.WORKER_EXIT:
                self._on_exit(decode(frame.head))
            case Kind.DUMPED:
                report = decode(frame.head)
                self._answers.pop((report["worker"], report["generation"]), Future()).set_result(report["text"])
            case Kind.DISMISSED:
                self._lost_reason = DISMISSED
                self._pool.dismissed()
            case Kind.MEASURED:
                self._answers.pop(frame.id, Future()).set_result(decode(frame.head))
            case Kind.KEPT:
                with _unless_closed:
                    self._kept.set_result(True)
            case Kind.WORKER_UP if not self._closing:  # otherwise it is for the next client
                self._spawn(self._on_worker_up, decode(frame.head))

    def _on_exit(self, report: dict[str, Any]) -> None:
        key = (report["worker"], report["generation"])
        ended = self._workers.get(report["worker"])
        with self._changed:
            self._reports[key] = report
            self._changed.notify_all()
        if ended is not None and ended.generation == report["generation"] and not ended.hung_up:
            self._spawn(self._hang_up, ended)

    def _hang_up(self, worker: WorkerClient) -> None:
        """End the connection of an ended worker, in case a process that it forked keeps it open."""
        with self._changed:
            self._changed.wait_for(lambda: worker.hung_up, _DRAIN_S)
        worker.connection.stop_reading()

    def _on_worker_up(self, news: dict[str, Any]) -> None:
        """Connect to a restarted worker, and request its set-up."""
        known = self._workers.get(news["worker"])
        if known is not None and known.generation >= news["generation"]:
            return  # it was already connected when the node was taken over
        try:
            worker = self._open_worker(news["worker"], news["generation"], news["address"])
            self._pool.worker_started(self, worker)
        except SkywardError as error:
            if not self._closing and self.gone is None:
                self.declare_lost(f"its worker {news['worker']} was started again, but cannot be used: {error}")

    def _on_gone(self) -> None:
        wait_s = _REASON_S if self._lost_reason is None else 0.0
        exit_ = self._node.wait_exit(wait_s) or Exit(code=None, text="its agent closed the connection")
        if self._lost_reason is not None:
            exit_ = Exit(code=exit_.code, text=self._lost_reason)
        with self._changed:
            self.gone = exit_
            self._changed.notify_all()
        removal = self._spawn(self.remove)
        self._await_readers()
        removal.join()
        self.removed.set()
        self._pool.node_gone(self)

    def _await_readers(self) -> None:
        """Wait until the workers' readers have handled all received messages and settled the remaining calls."""
        with self._changed:
            if self._lost_reason is None:  # the processes have ended, so connections end once read
                self._changed.wait_for(lambda: not self._readers, _DRAIN_S)
            while self._readers:  # they block on nothing but their connections
                for worker in self.workers:
                    worker.connection.stop_reading()
                self._changed.wait(_DRAIN_S)

    def remove(self) -> None:
        """Remove the node immediately; errors are reported by `close`, which may be running in another thread."""
        try:
            self._node.remove()
        except SkywardError:
            pass  # closing the pool tries again, and reports errors

    def _on_setup(self, worker: WorkerClient, frame: Frame) -> None:
        setup = self.setups[worker.rank]
        if frame.kind == Kind.GATHER and worker.gather is not None:
            worker.gather.give(worker.rank, worker.connection, frame)
        elif frame.kind == Kind.GATHER:
            refuse(worker.connection, frame, ALONE)
        elif frame.kind == Kind.READY:
            with _unless_closed:
                setup.set_result(None)
        else:
            self._pool.callbacks.submit("the error of a plugin", partial(_fail_setup, setup, worker, frame))

    # why a worker ended ----------------------------------------------------------------------------------------

    def _reason(self, worker: WorkerClient) -> dict[str, Any] | None:
        """Return the agent's report of a worker's end; None if the whole node is lost."""
        key = (worker.index, worker.generation)
        with self._changed:
            known = self._changed.wait_for(lambda: key in self._reports or self.gone is not None, _REASON_S)
            report = self._reports.get(key)
        if not known:
            self.declare_lost("the connection to its worker ended, and its agent gave no reason")
            with self._changed:
                self._changed.wait_for(lambda: self.gone is not None, 2 * _REASON_S)
        return report if self.gone is None else None

    # requests of the pool --------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat; declare the node lost if enough of them were unanswered for too long.

        Periods without heartbeats do not count: during the set-up, or while this client was suspended.
        """
        if self.gone is not None or self._agent is None or self._closing:
            return
        now = time.monotonic()
        asked = self._unanswered  # the reader replaces the list
        if len(asked) >= _ASKED and now - asked[0] > SILENCE_S:
            self.declare_lost(f"it has answered nothing for {now - asked[0]:.0f} s")
            return
        asked.append(now)
        self._post(Frame(Kind.PING, time.monotonic_ns()))

    def move(self, document: str) -> None:
        """Send the node a new COMPUTE_POOL document, which its workers use from their next call on."""
        self.document = document
        frame = Frame(Kind.PLACE, 0, document.encode())
        self._post(frame)
        for worker in self.workers:  # a worker that is started later receives it on connecting
            worker.post_frame(frame)
            worker.flush()

    def dial(self, address: str) -> socket.socket:
        """Connect to `tcp:<ip>:<port>`, as resolved by the node, on the same path as to its own sockets.

        Raises:
            WireError: nothing listens there, or the path no longer exists.
        """
        return self._node.connect(address)

    @property
    def is_connected(self) -> bool:
        """Whether its agent is connected; False while the node starts."""
        return self._agent is not None

    @property
    def address(self) -> str:
        """The address at which other nodes reach it."""
        return self.host.address

    @property
    def workers(self) -> tuple[WorkerClient, ...]:
        """The present workers of the node, including those that are not set up yet."""
        return tuple(self._workers.values())

    def dump(self, worker: WorkerClient) -> Future[str]:
        """Ask the agent for the stack of a worker that does not answer, in faulthandler's format."""
        dumped = self._answers[worker.index, worker.generation] = Future[str]()
        self._post(Frame(Kind.DUMP, 0, encode({"worker": worker.index, "generation": worker.generation})))
        return dumped

    def usage(self) -> Future[dict[str, Any]]:
        """Ask the agent for the node's resource usage."""
        number = next(self._numbers)
        answer = self._answers[number] = Future[dict[str, Any]]()
        self._post(Frame(Kind.USAGE, number))
        return answer

    def declare_lost(self, reason: str) -> None:
        """Declare the node lost; its calls are settled and it is removed."""
        self._lost_reason = self._lost_reason or reason
        if self._agent is not None:
            self._agent.close()

    def discard(self, grace_s: float = 0.0) -> None:
        """`close` a drained or unusable node while the pool stays open, and settle the calls of its workers.

        Raises:
            SkywardError: it cannot be removed.
        """
        try:
            self.close(grace_s)
        finally:
            self.gone = Exit(code=0, text="it was ended by its pool")
            for worker in self.workers:
                self._pool.dispatcher.lose(worker, worker.lost_running(None, self.gone), is_known=True)

    def close(self, grace_s: float) -> None:
        """Shut the node down, exiting its plugins first; remove it if it is left after `grace_s`."""
        self._closing = True
        try:
            if self._agent is not None and self.gone is None:
                self._post(Frame(Kind.SHUTDOWN, 0, encode({"grace_s": grace_s})))
                if self._node.wait_exit(grace_s + 1.0) and self._agent_reader is not None:
                    self._agent_reader.join(_LAST_WORDS_S)
        finally:
            for connection in self._connections():
                connection.close()
            self._node.remove()

    def keep(self, keep_s: float, grace_s: float) -> bool:
        """Keep the node for the next client, with new workers; return False if it is lost or does not answer."""
        self._closing = True
        if self._agent is None or self.gone is not None:
            return False
        self._post(Frame(Kind.KEEP, 0, encode({"keep_s": keep_s, "grace_s": grace_s})))
        try:
            kept = self._kept.result(grace_s + _ENDED_S)
        except FutureTimeoutError:
            kept = False
        for connection in self._connections():
            connection.close()
        return kept

    def let_go(self) -> None:
        """Close a forked process's copies of the descriptors, and do nothing else."""
        for connection in self._connections():
            connection.abandon()

    def _connections(self) -> list[Connection]:
        """Return its present connections, that of the agent last."""
        workers = [worker.connection for worker in self.workers]
        return workers if self._agent is None else [*workers, self._agent]

    def _post(self, frame: Frame) -> None:
        try:
            assert self._agent is not None
            self._agent.post(frame)
        except WireError:
            pass  # the agent's reader fails too, and handles the loss


def _fail_setup(setup: Future[None], worker: WorkerClient, frame: Frame) -> None:
    """Unpickle a plugin's exception, outside the reading thread, since its class may be the user's code."""
    error = payload.load_exception(bytes(memoryview(frame.head)[RESULT_HEAD.size :]))
    with _unless_closed:
        setup.set_exception(payload.noted(error, f"raised while the plugins were set up on {worker}"))
