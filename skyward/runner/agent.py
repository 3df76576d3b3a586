"""The agent of a node: starts, watches and restarts its workers, answers clients, enforces the lease.

It never runs user code, so that it always answers: one C call that holds the GIL would silence it for its whole length.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from skyward.errors import WireError
from skyward.model.instance import ENV_VAR, InstanceInfo
from skyward.runner import stacks
from skyward.runner.acceptor import Acceptor
from skyward.runner.children import Child, Ended
from skyward.runner.clients import Client
from skyward.runner.config import DISMISS, EXIT_DISMISSED, rank_environment
from skyward.runner.memory import OomCounter
from skyward.runner.reach import Reach
from skyward.runner.signals import on_signals
from skyward.system import Empty, SimpleQueue, socket, threading, time
from skyward.wire.frames import Connection, Frame
from skyward.wire.handshake import accept, agent_endpoint, versions
from skyward.wire.listen import listen, tune
from skyward.wire.messages import Kind, decode, encode

ANNOUNCEMENT = "skyward-ready "
EXIT_FAILED, EXIT_CONFIG, EXIT_LEASE = 1, 2, 3  # exit statuses besides 0 and EXIT_DISMISSED
_TERM_GRACE_S = 5.0  # `docker stop` kills after ten seconds
_KILLED_S = 1.0  # how long a killed process may take to vanish
_DUMP_S = 1.0  # how long a worker may take to write where it is
_MAX_FAILED_STARTS = 3  # in a row
_LONGEST_GRACE_S = 1e6
_SHOWN = 200  # characters of what a malformed message led to


class End(NamedTuple):
    """Why the node is to end."""

    status: int
    text: str = ""
    grace_s: float = 0.0


class Agent:
    """One node. `run` is the main thread; everything that is to end the node reaches it through a queue."""

    def __init__(
        self, node: int, lease_s: float, run_dir: Path, key: bytes, children: list[Child], channel: bytes = b""
    ) -> None:
        self._node, self._lease_s, self._run_dir, self._key, self._channel = node, lease_s, run_dir, key, channel
        self._inbox: SimpleQueue[End | None] = SimpleQueue()  # None: look again
        self._lock = threading.Lock()  # guards what follows
        self._children = children
        self._clients: list[Client] = []
        self._ready = self._stopping = False
        self._contact = time.monotonic()
        self._oom = OomCounter()
        self._reach = Reach(node)
        self._watchers = [self._thread(self._keep_alive, child) for child in children]

    def run(self) -> int:
        """Serve until told to end, or until no client has been there for the lease; returns the exit status."""
        threading.excepthook = self._on_thread_error
        ended = End(0, grace_s=_TERM_GRACE_S)
        dismissed = End(EXIT_DISMISSED, f"Node {self._node} ends: it was told to by another client than its pool's.")
        on_signals(
            (signal.SIGTERM, signal.SIGINT, DISMISS),
            lambda number: self._inbox.put(dismissed if number == DISMISS else ended),
        )
        end = End(EXIT_FAILED)
        try:
            end = self._serve()
            if end.text:
                say(end.text)
        finally:
            if end.status == EXIT_DISMISSED:
                with self._lock:
                    self._tell_all(Frame(Kind.DISMISSED, 0))
            self._stop(end.grace_s)
        return end.status

    def _serve(self) -> End:
        listener, address = listen(self._run_dir, "agent.sock")
        acceptor = Acceptor(listener, authenticate=self._authenticate, serve=self._welcome, say=say)
        for thread in (*self._watchers, self._thread(acceptor.run)):
            thread.start()
        versions()  # imports cloudpickle, while the workers start, for the first client not to wait
        end = self._wait(lambda: all(child.address for child in self._children))
        if end is None:
            self._ready = True
            try:
                os.write(1, f"{ANNOUNCEMENT}{encode(self._addresses(address)).decode()}\n".encode())
            except OSError as error:
                return End(EXIT_FAILED, f"Node {self._node} could not announce itself ({error}).")
            end = self._wait(lambda: False)
        return end or End(0)

    def _addresses(self, agent: str) -> dict[str, object]:
        return {"agent": agent, "workers": [child.address for child in self._children]}

    def _wait(self, done: Callable[[], bool]) -> End | None:
        """Block until `done` or the end of the node, whichever comes first."""
        while not done():
            left = self._contact + self._lease_s - time.monotonic()
            if left <= 0:
                return End(EXIT_LEASE, f"Node {self._node} ends: no client for {self._lease_s:g} s (its lease).")
            try:
                end = self._inbox.get(timeout=min(left, threading.TIMEOUT_MAX))
            except Empty:
                self._drop_silent()
                continue
            if end is not None:
                return end
        return None

    def _drop_silent(self) -> None:
        """Let go of clients whose machine is gone without a word; another client has kept the node alive."""
        with self._lock:
            silent = [c for c in self._clients if time.monotonic() - c.heard > self._lease_s]
        for client in silent:
            client.close()

    def _stop(self, grace_s: float) -> None:
        """End the workers, then the connections, and leave nothing in the run directory."""
        with self._lock:
            self._stopping = True
            children = tuple(self._children)
        started = [thread for thread in self._watchers if thread.ident]
        deadline = time.monotonic() + grace_s
        if grace_s > 0:
            for child in children:
                child.ask_exit(grace_s)
            _join(started, deadline)
        for child in children:
            child.kill()
        _join(started, time.monotonic() + _KILLED_S)
        with self._lock:
            clients = tuple(self._clients)
        for client in clients:
            client.say_goodbye()
        for path in (*self._run_dir.glob("*.sock"), *self._run_dir.glob("*.stack")):
            path.unlink(missing_ok=True)

    # Workers

    def _keep_alive(self, child: Child) -> None:
        """Watch one worker; when it ends, report that and start it again (a thread per worker)."""
        failed_starts = 0
        while True:
            pump = self._thread(self._pump, child)
            pump.start()
            ended = child.wait()
            oom = ended.signal == signal.SIGKILL and not ended.asked and self._oom.take()
            pump.join()
            child.close()
            self._report(child, ended, oom=oom)
            failed_starts = 0 if child.address else failed_starts + 1
            if self._stopping:
                return
            if not self._ready or failed_starts == _MAX_FAILED_STARTS:
                self._inbox.put(self._failed(child, ended, oom=oom, starts=failed_starts))
                return
            try:
                fresh = self._restart(child)
            except OSError as error:
                text = f"Worker {child.start.index} of node {self._node} could not be started again ({error})."
                self._inbox.put(End(EXIT_FAILED, text))
                return
            if fresh is None:
                return
            child = fresh

    def _pump(self, child: Child) -> None:
        worker = child.start.index

        def on_listening(_address: str) -> None:
            with self._lock:
                if child.start.generation:
                    self._tell_all(_worker_up(child))
            self._inbox.put(None)

        def on_output(stream: int, text: str) -> None:
            with self._lock:
                self._tell_all(Frame(Kind.WORKER_OUTPUT, worker, bytes((stream,)) + text.encode()))

        child.pump(on_listening, on_output)

    def _report(self, child: Child, ended: Ended, *, oom: bool) -> None:
        document = {
            "worker": child.start.index,
            "generation": child.start.generation,
            "code": ended.code,
            "signal": ended.signal,
            "oom": oom,
            "log": child.log(),
        }
        with self._lock:
            self._tell_all(Frame(Kind.WORKER_EXIT, 0, encode(document)))

    def _restart(self, child: Child) -> Child | None:
        """The next life of a worker; None when the node is ending."""
        if child.address and child.address.startswith("unix:"):
            (self._run_dir / child.address.removeprefix("unix:")).unlink(missing_ok=True)
        stacks.dump_file(child.start).unlink(missing_ok=True)
        with self._lock:
            if self._stopping:
                return None
            fresh = Child(replace(child.start, generation=child.start.generation + 1), child.env)
            self._children[child.start.index] = fresh
            return fresh

    def _failed(self, child: Child, ended: Ended, *, oom: bool, starts: int) -> End:
        how = f"signal {ended.signal}" if ended.signal else f"exit status {ended.code}"
        if oom:
            how += ", killed for want of memory"
        when = "before the node was ready" if not self._ready else f"{starts} times in a row before it listened"
        text = f"Worker {child.start.index} of node {self._node} ended {when} ({how})."
        log = child.log().rstrip()
        return End(EXIT_FAILED, f"{text} Its last lines:\n{log}" if log else f"{text} It wrote nothing.")

    # Clients

    def _authenticate(self, sock: socket.socket) -> Connection:
        tune(sock)
        return accept(sock, self._key, agent_endpoint(self._node), self._channel)

    def _welcome(self, connection: Connection) -> None:
        """Serve an authenticated client to its end (a thread per connection)."""
        client = Client(connection)
        with self._lock:
            for child in self._children:
                if child.start.generation and child.address:  # not where the announcement said
                    client.post(_worker_up(child))
            self._clients.append(client)
        self._thread(client.send).start()
        try:
            self._converse(client)
        finally:
            with self._lock:
                self._clients.remove(client)
            self._contact = time.monotonic()
            client.close()
            self._reach.close()

    def _converse(self, client: Client) -> None:
        client.heard = self._contact = time.monotonic()
        try:
            while frames := client.connection.receive():
                client.heard = self._contact = time.monotonic()
                for frame in frames:
                    self._take(client, frame)
        except WireError:
            return  # it is gone; the lease decides what follows
        except Exception as error:  # whatever a malformed message leads to: it costs its own connection and no more
            _refuse(client, error)

    def _take(self, client: Client, frame: Frame) -> None:
        match frame.kind:
            case Kind.PING:
                client.connection.post(Frame(Kind.PONG, frame.id))
            case Kind.KILL:
                self._kill(decode(frame.head))
            case Kind.PLACE:
                self._move(bytes(frame.head).decode())
            case Kind.DUMP:
                order = decode(frame.head)
                self._thread(self._dump, self._meant(order), order).start()
            case Kind.REACH:
                self._thread(self._try_reach, client, frame.id, decode(frame.head)).start()
            case Kind.SHUTDOWN:
                self._inbox.put(End(0, grace_s=_seconds(decode(frame.head)["grace_s"])))
            case _:
                raise ValueError(f"kind {frame.kind}")

    def _move(self, document: str) -> None:
        """Note the node's new place, for workers that are started from now on; those that run are told themselves."""
        place = InstanceInfo.from_json(document)
        if place.node != self._node:
            raise ValueError(f"the place of node {place.node}, sent to node {self._node}")
        with self._lock:
            changes = [rank_environment(place, child.start.index, os.environ) for child in self._children]
            os.environ[ENV_VAR] = document
            for child, variables in zip(self._children, changes, strict=True):
                child.env.update(variables)

    def _kill(self, order: dict[str, int]) -> None:
        """End a worker."""
        if child := self._meant(order):
            child.kill()

    def _dump(self, child: Child | None, order: dict[str, int]) -> None:
        """Let a worker that does not answer write where it is, and pass that on (a thread of its own)."""
        if child is not None and child.address:
            text = stacks.read_dump(stacks.dump_file(child.start), child.signal, _DUMP_S)
            with self._lock:
                self._tell_all(Frame(Kind.DUMPED, 0, encode({**order, "text": text})))

    def _try_reach(self, client: Client, question: int, order: dict[str, Any]) -> None:
        """Do one step of finding out which nodes reach each other (a thread of its own)."""
        try:
            answer = self._reach.take(order)
        except Exception as error:  # as in `_converse`
            _refuse(client, error)
        else:
            client.post(Frame(Kind.REACHED, question, encode(answer)))

    def _meant(self, order: dict[str, int]) -> Child | None:
        """The worker of an order; one that names a generation must not hit the one that has replaced it."""
        with self._lock:
            child = {c.start.index: c for c in self._children}[order["worker"]]
        return child if order.get("generation", child.start.generation) == child.start.generation else None

    def _tell_all(self, frame: Frame) -> None:
        for client in self._clients:
            client.post(frame)

    # Threads

    def _thread(self, target: Callable[..., None], *args: object) -> threading.Thread:
        return threading.Thread(target=target, args=args, daemon=True)

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """Never limp on half-dead: whatever a thread did not expect ends the node."""
        if args.exc_value is not None:
            sys.excepthook(args.exc_type, args.exc_value, args.exc_traceback)
        self._inbox.put(End(EXIT_FAILED, f"Node {self._node} ends: its agent failed, see above."))


def _refuse(client: Client, error: Exception) -> None:
    """Close the connection of a client that sent a malformed message, and say so, with no more than a part of it."""
    text = repr(error)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    say(f"A client sent a message that is not understood ({shown}); its connection was closed.")
    client.close()


def _seconds(value: object) -> float:
    """A duration out of a message: a number, neither negative nor endless."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_GRACE_S:
        raise ValueError(f"{value!r} is no duration in seconds")
    return float(value)


def say(text: str) -> None:
    """Write a line for whoever started this node."""
    try:
        os.write(2, f"skyward: {text}\n".encode(errors="replace"))
    except OSError:
        pass  # they no longer listen


def _worker_up(child: Child) -> Frame:
    document = {"worker": child.start.index, "address": child.address, "generation": child.start.generation}
    return Frame(Kind.WORKER_UP, 0, encode(document))


def _join(threads: list[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
