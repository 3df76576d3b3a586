"""The agent of a node: starts, watches and restarts its workers, answers clients, enforces the lease.

It never runs user code, since a C call that holds the GIL would keep it from answering.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward.errors import WireError
from skyward.model.instance import (
    ANNOUNCEMENT,
    DISMISS,
    ENV_VAR,
    EXIT_DISMISSED,
    EXIT_FAILED,
    EXIT_LEASE,
    PROCESSES_VAR,
    InstanceInfo,
)
from skyward.runner.children import Child, ChildOutput, Ended, OomCounter
from skyward.runner.cleaning import cleaner
from skyward.runner.clients import LAST_WORDS_S, Acceptor, Client
from skyward.runner.config import RunnerSettings, rank_environment
from skyward.runner.diagnosis import dump_file, fatal_stack, read_dump
from skyward.runner.entry import container
from skyward.runtime.masking import Masks
from skyward.system import Empty, SimpleQueue, socket, threading, time
from skyward.system.process_end import on_signals
from skyward.wire.frames import Connection, Frame, listen, tune
from skyward.wire.handshake import accept, agent_endpoint, versions
from skyward.wire.messages import Kind, decode, encode

if TYPE_CHECKING:
    from skyward.runner.usage import UsageMeter

_TERM_GRACE_S = 5.0  # `docker stop` kills after ten seconds
_ENDED_S = 5.0  # how long the workers of a client that leaves may take to end when they are killed
_KILLED_S = 1.0  # how long a killed process may take to end
_TOGETHER_S = 0.2  # maximum delay between a scheduler's signals to two processes of a job
_DUMP_S = 1.0  # how long a worker may take to write its stack
_START_S = 60.0  # minimum time for workers to listen, as a short lease is not enough on a busy machine
_MAX_FAILED_STARTS = 3  # in a row
_LONGEST_GRACE_S = 1e6


class End(NamedTuple):
    """Reason for the end of the node."""

    status: int
    text: str = ""
    grace_s: float = 0.0


class Agent:
    """The agent of one node. `run` is the main thread; every event that ends the node reaches it through a queue."""

    def __init__(
        self,
        node: int,
        settings: RunnerSettings,
        run_dir: Path,
        key: bytes,
        children: list[Child],
        channel: bytes = b"",
    ) -> None:
        self._node, self._lease_s, self._run_dir = node, settings.lease_s, run_dir
        self._key, self._channel = key, channel
        self._masks = Masks()
        self._inbox: SimpleQueue[End | None] = SimpleQueue()  # None: check the conditions again
        self._lock = threading.Lock()  # guards the attributes below
        self._changed = threading.Condition(self._lock)
        self._children = children
        self._clean = cleaner(settings.reset, run_dir)
        self._holder: Client | None = None  # stays when it disconnects: only KEEP leaves the node to another
        self._is_leaving = False  # from KEEP until the client's workers have ended
        self._is_kept = False  # from then on until the next TAKE; meanwhile no worker runs
        self._ended: set[int] = set()  # workers that have ended since KEEP
        self._clients: list[Client] = []
        self._ready = self._stopping = False
        self._told_to_end = threading.Event()  # by a signal
        self._contact = time.monotonic()
        self._oom = OomCounter()
        # whether to end what functions leave behind, whatever its session; elsewhere the container's end does that
        self._adopts = PROCESSES_VAR in os.environ and sys.platform == "linux"
        self._measuring = threading.Lock()
        self._usage: UsageMeter | None = None
        self._watchers = [self._thread(self._keep_alive, child) for child in children]

    def run(self) -> int:
        """Serve until told to end or until the lease expires without a client; return the exit status."""
        threading.excepthook = self._on_thread_error
        ended = End(0, grace_s=_TERM_GRACE_S)
        dismissed = End(EXIT_DISMISSED, f"Node {self._node} ends: a client other than its pool's asked for that.")

        def end_by(number: int) -> None:
            self._told_to_end.set()
            self._inbox.put(dismissed if number == signal.Signals[DISMISS] else ended)

        def on_signal(number: int) -> None:
            self._release_orphans() if number == signal.SIGCHLD else end_by(number)

        ends = (signal.SIGTERM, signal.SIGINT, signal.Signals[DISMISS])
        on_signals((*ends, signal.SIGCHLD) if self._adopts else ends, on_signal)
        if self._adopts:
            container.adopt_orphans()
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
        versions()  # imports cloudpickle while the workers start, so that the first client does not wait
        end = self._wait_for_end(lambda: all(child.address for child in self._children))
        if end is None:
            self._ready, self._contact = True, time.monotonic()  # a client can connect from now on: the lease begins
            addresses = {"agent": address, "workers": [child.address for child in self._children]}
            os.write(1, f"{ANNOUNCEMENT}{encode(addresses).decode()}\n".encode())
            end = self._wait_for_end(lambda: False)
        return end or End(0)

    def _wait_for_end(self, done: Callable[[], bool]) -> End | None:
        """Block until `done`, or until the node is to end: by request, by failure, or because its lease has expired."""
        while not done():
            limit_s = self._lease_s if self._ready else max(self._lease_s, _START_S)
            left = self._contact + limit_s - time.monotonic()
            if left <= 0:
                whose = "the time that it is kept" if self._is_kept else "its lease"
                return End(EXIT_LEASE, f"Node {self._node} ends: no client for {limit_s:g} s ({whose}).")
            try:
                end = self._inbox.get(timeout=min(left, threading.TIMEOUT_MAX))
            except Empty:
                continue
            if end is not None:
                return end
        return None

    def _stop(self, grace_s: float) -> None:
        """End the workers, then the connections, and remove sockets and stack files from the run directory."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
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
            client.close(LAST_WORDS_S)
        for path in (*self._run_dir.glob("*.sock"), *self._run_dir.glob("*.stack")):
            path.unlink(missing_ok=True)
        if self._adopts:
            container.end_descendants()

    def _release_orphans(self) -> None:
        """Release processes that have ended and whose parent this process has become."""
        with self._lock:
            workers = {child.pid for child in self._children}
            for pid in container.children():
                if pid not in workers:
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    # Workers

    def _keep_alive(self, child: Child) -> None:
        """Watch one worker; when it ends, report that and start it again (a thread per worker)."""
        failed_starts = 0
        while True:
            reader = self._thread(self._read_output, child)
            reader.start()
            ended = child.wait()
            oom = ended.signal == signal.SIGKILL and not ended.asked and self._oom.take()
            reader.join()
            child.close()
            if ended.signal == signal.SIGTERM and not ended.asked and self._told_to_end.wait(_TOGETHER_S):
                return  # all processes of the node were signalled: the node's end is reported instead
            self._report(child, ended, oom=oom)
            if child.address:
                failed_starts = 0
            elif not ended.asked:  # a worker killed for a client has not failed
                failed_starts += 1
            if self._stopping:
                return
            if not self._ready or failed_starts == _MAX_FAILED_STARTS:
                self._inbox.put(self._failed(child, ended, oom=oom, starts=failed_starts))
                return
            fresh = self._restart(child)
            if fresh is None:
                return
            child = fresh

    def _read_output(self, child: Child) -> None:
        worker = child.start.index

        def on_listening(_address: str) -> None:
            with self._lock:
                if child.start.generation:
                    self._tell_all(_worker_up(child))
                self._changed.notify_all()
            self._inbox.put(None)

        def tell(stream: int, text: str) -> None:
            with self._lock:
                self._tell_all(Frame(Kind.WORKER_OUTPUT, worker, bytes((stream,)) + text.encode()))

        written = ChildOutput(lambda: self._masks, tell)
        child.read(on_listening, written.add)
        written.finish()

    def _report(self, child: Child, ended: Ended, *, oom: bool) -> None:
        document = {
            "worker": child.start.index,
            "generation": child.start.generation,
            "code": ended.code,
            "signal": ended.signal,
            "oom": oom,
            "log": self._masks.conceal(child.log()),
            "stack": fatal_stack(child.start) if ended.signal else "",
        }
        with self._lock:
            self._tell_all(Frame(Kind.WORKER_EXIT, 0, encode(document)))

    def _restart(self, child: Child) -> Child | None:
        """Start a worker process again; return None if the node is ending."""
        if child.address and child.address.startswith("unix:"):
            (self._run_dir / child.address.removeprefix("unix:")).unlink(missing_ok=True)
        dump_file(child.start).unlink(missing_ok=True)
        with self._lock:
            while (self._is_leaving or self._is_kept) and not self._stopping:
                self._ended.add(child.start.index)
                self._changed.notify_all()
                self._changed.wait()
            if self._stopping:
                return None
            fresh = Child(replace(child.start, generation=child.start.generation + 1), child.env)
            self._children[child.start.index] = fresh
            return fresh

    def _failed(self, child: Child, ended: Ended, *, oom: bool, starts: int) -> End:
        how = f"signal {ended.signal}" if ended.signal else f"exit status {ended.code}"
        if oom:
            how += ", killed because memory ran out"
        when = "before the node was ready" if not self._ready else f"{starts} times in a row before it listened"
        text = f"Worker {child.start.index} of node {self._node} ended {when} ({how})."
        log = self._masks.conceal(child.log()).rstrip()
        return End(EXIT_FAILED, f"{text} Its last lines:\n{log or '(none)'}")

    # Clients

    def _authenticate(self, sock: socket.socket) -> Connection:
        tune(sock)
        return accept(sock, self._key, agent_endpoint(self._node), self._channel)

    def _welcome(self, connection: Connection) -> None:
        """Serve an authenticated client until it disconnects (a thread per connection)."""
        client = Client(connection)
        with self._lock:
            for child in self._children:
                if child.start.generation and child.address:  # its address is not the announced one
                    client.post(_worker_up(child))
            self._clients.append(client)
        try:
            self._converse(client)
        finally:
            with self._lock:
                self._clients.remove(client)
            self._contact = time.monotonic()
            client.close()

    def _converse(self, client: Client) -> None:
        self._contact = time.monotonic()
        try:
            while frames := client.connection.receive():
                self._contact = time.monotonic()
                for frame in frames:
                    self._take(client, frame)
        except WireError:
            return  # the client has disconnected; the lease decides what follows
        except Exception as error:  # a malformed message only ends its own connection, whatever the error
            _refuse(client, error)

    def _take(self, client: Client, frame: Frame) -> None:
        match frame.kind:
            case Kind.PING:
                client.connection.post(Frame(Kind.PONG, frame.id))
            case Kind.KILL:
                if child := self._meant(decode(frame.head)):
                    child.kill()
            case Kind.MASK:
                self._masks = Masks(map(str, decode(frame.head)["values"]))
            case Kind.PLACE:
                self._move(bytes(frame.head).decode())
            case Kind.DUMP:
                order = decode(frame.head)
                self._thread(self._dump, self._meant(order), order).start()
            case Kind.USAGE:
                self._thread(self._try_for, client, self._answer_usage, client, frame.id).start()
            case Kind.TAKE:
                order = decode(frame.head)
                order["lease_s"] = _seconds(order["lease_s"])
                self._thread(self._try_for, client, self._take_over, client, order).start()
            case Kind.KEEP:
                order = decode(frame.head)
                keep_s, grace_s = _seconds(order["keep_s"]), _seconds(order["grace_s"])
                with self._lock:  # not in the thread: later messages must find the node released
                    if self._holder is not client:
                        raise ValueError("KEEP from a client that does not have the node")
                    self._holder, self._is_leaving = None, True
                    self._ended.clear()
                self._thread(self._try_for, client, self._keep, client, keep_s, grace_s).start()
            case Kind.SHUTDOWN:
                self._inbox.put(End(0, grace_s=_seconds(decode(frame.head)["grace_s"])))
            case _:
                raise ValueError(f"kind {frame.kind}")

    def _try_for(self, client: Client, action: Callable[..., None], *args: object) -> None:
        """Perform a client's request that takes a while (a thread of its own)."""
        try:
            action(*args)
        except Exception as error:  # as in `_converse`
            _refuse(client, error)

    def _take_over(self, client: Client, order: dict[str, Any]) -> None:
        """Assign the node to a client, and send it the workers' addresses once they listen (a thread of its own)."""
        environment = order["environment"]  # of the workers, complete; None to leave it unchanged
        with self._lock:
            if self._holder is not None or self._is_leaving:
                client.post(Frame(Kind.TAKEN, 0, encode({"refused": "another client has the node, or had it last"})))
                return
            self._holder = client
            if environment is not None:
                os.environ.clear()
                os.environ.update(environment)
        try:
            self._move(str(order["compute_pool"]))
        except BaseException:
            with self._lock:
                self._holder = None
            raise
        with self._lock:
            self._set_lease(order["lease_s"])
            self._is_kept = False
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._holder is not client or self._stopping or all(child.address for child in self._children)
            )
            if self._holder is client and not self._stopping:
                workers = [[child.start.generation, child.address] for child in self._children]
                client.post(Frame(Kind.TAKEN, 0, encode({"workers": workers})))

    def _keep(self, client: Client, keep_s: float, grace_s: float) -> None:
        """End a client's workers within the grace period, clean up, and notify it (a thread of its own)."""
        with self._lock:
            children = tuple(self._children)
        if grace_s > 0:
            for child in children:
                child.ask_exit(grace_s)
            self._all_ended(grace_s)
        for child in children:
            child.kill()
        problem = "" if self._all_ended(_ENDED_S) else "its workers do not end."
        if problem := problem or self._clean():
            text = f"Node {self._node} ends: what its last client left cannot be removed: {problem}"
            self._inbox.put(End(EXIT_FAILED, text))
            return
        with self._lock:
            if self._stopping:
                return
            self._is_kept, self._is_leaving = True, False
            for child in children:
                child.address = None  # nothing listens there until the next client's worker does
            self._set_lease(keep_s)
            client.post(Frame(Kind.KEPT, 0))

    def _all_ended(self, timeout_s: float) -> bool:
        """Wait for the end of all workers since KEEP; return whether they have ended, or the node is ending."""
        with self._lock:
            return self._changed.wait_for(lambda: self._stopping or len(self._ended) == len(self._children), timeout_s)

    def _set_lease(self, lease_s: float) -> None:
        self._lease_s, self._contact = lease_s, time.monotonic()
        self._inbox.put(None)  # the main thread recomputes its timeout

    def _move(self, document: str) -> None:
        """Store the node's new place for workers started from now on; the client informs running workers itself."""
        place = InstanceInfo.from_json(document)
        if place.node != self._node:
            raise ValueError(f"the place of node {place.node}, sent to node {self._node}")
        with self._lock:
            count = len(self._children)
            changes = [rank_environment(place, child.start.index, os.environ, count) for child in self._children]
            os.environ[ENV_VAR] = document
            for child, variables in zip(self._children, changes, strict=True):
                child.env.update(variables)

    def _dump(self, child: Child | None, order: dict[str, int]) -> None:
        """Make an unresponsive worker write its stack, and send that to the clients (a thread of its own)."""
        if child is not None and child.address:
            text = read_dump(dump_file(child.start), child.signal, _DUMP_S)
            with self._lock:
                self._tell_all(Frame(Kind.DUMPED, 0, encode({**order, "text": text})))

    def _answer_usage(self, client: Client, question: int) -> None:
        """Send the node's resource usage; concurrent requests are handled one after the other."""
        with self._measuring:
            if self._usage is None:
                from skyward.runner.usage import UsageMeter  # imported on the first request

                self._usage = UsageMeter(of_processes=PROCESSES_VAR in os.environ)
            answer = self._usage.measure()
        with self._lock:
            client.post(Frame(Kind.MEASURED, question, encode(answer)))

    def _meant(self, order: dict[str, int]) -> Child | None:
        """Return the worker that a message is for; None if its generation is that of a process replaced since."""
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
        """End the node on an unexpected exception in any thread."""
        if args.exc_value is not None:
            sys.excepthook(args.exc_type, args.exc_value, args.exc_traceback)
        self._inbox.put(End(EXIT_FAILED, f"Node {self._node} ends: its agent failed, see above."))


def _refuse(client: Client, error: Exception) -> None:
    """Close the connection of a client that sent a malformed message, and report that with a shortened error."""
    say(f"A client sent a malformed message ({error!r:.200}); its connection was closed.")
    client.close()


def _seconds(value: object) -> float:
    """Return a duration from a message; raises ValueError unless it is a number from 0 to 1e6."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_GRACE_S:
        raise ValueError(f"{value!r} is not a duration in seconds")
    return float(value)


def say(text: str) -> None:
    """Write a line for the program that started this node."""
    try:
        os.write(2, f"skyward: {text}\n".encode(errors="replace"))
    except OSError:
        pass  # the other end is closed


def _worker_up(child: Child) -> Frame:
    document = {"worker": child.start.index, "address": child.address, "generation": child.start.generation}
    return Frame(Kind.WORKER_UP, 0, encode(document))


def _join(threads: list[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
