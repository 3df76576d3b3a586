"""A worker: the process that runs user code. It has a listening socket, to which the client connects directly.

Calls run in the main thread (one slot) or in other threads (several slots). The agent holds the other end of a private
socket; if that socket closes, the agent has ended, and the worker ends too.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import traceback
from _signal import getsignal  # type: ignore[import-not-found]  # avoids the enum conversion of `signal`: 4 us per call
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from skyward.errors import SkywardError, WireError, explained
from skyward.model.instance import CODE_DIR, ENV_VAR, SETUP, InstanceInfo
from skyward.runner import diagnosis, main_module, process
from skyward.runner import shared_values as shared
from skyward.runner.calls import Calls, failure
from skyward.runner.clients import Acceptor
from skyward.runner.config import WorkerStart, read_place
from skyward.runner.exchange import CHECKPOINTS, Requests
from skyward.runner.process import end_child, on_fork
from skyward.runner.threads import IDLE, Inbox, Interrupted, MainSlot, Slot, SlotQueue, ThreadSlot
from skyward.runtime import checkpoint, environment, output
from skyward.runtime.ranks import install_gather
from skyward.system import process_end, socket, threading, time
from skyward.wire.frames import Connection, Frame, listen, tune
from skyward.wire.handshake import accept, worker_endpoint
from skyward.wire.messages import NO_CALL, STDERR, STDOUT, Kind, decode, encode

_HOOKS_S = 5.0  # time limit for the hooks of a process that is being replaced
_UNSHIELDED = nullcontext()
_HANDLED = (  # signals for which programs have handlers
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
)


class Worker:
    """Serves one client at a time; each new client starts with fresh state."""

    def __init__(self, start: WorkerStart, place: InstanceInfo) -> None:
        self._start, self._place = start, place
        self._inbox = Inbox(self._take)
        self._main = MainSlot()
        self._slots = list[Slot]((self._main,)) if start.slots == 1 else [ThreadSlot() for _ in range(start.slots)]
        self._shared = SlotQueue()
        self._work = self._inbox if start.slots == 1 else self._shared
        self._threads = [
            threading.Thread(target=self._run_slot, args=(slot, partial(self._shared.get, slot)), daemon=True)
            for slot in self._slots
            if isinstance(slot, ThreadSlot)
        ]
        self._queued: dict[int, int] = {}  # calls that can still be recalled, with the identity of their message
        self._calls = self._no_calls()
        self._connection: Connection | None = None
        self._serving = threading.Lock()
        self._setting_up = self._leaving = False
        self._claims = threading.Lock()  # guards the flags below, and the step from a queued to a running call
        self._retiring = False  # whether calls are no longer started because a fresh process will replace this one
        self.grace_s = _HOOKS_S  # until this process is killed, from when it is told to end
        self._retired = False  # whether the client has been told that none of the calls queued here has begun
        self._requests = Requests(self._ask, self._current, Path.cwd() / CHECKPOINTS)
        install_gather(self._requests.gather)
        checkpoint.install(self._requests)
        sys.breakpointhook = self._on_breakpoint

    def start(self, listener: socket.socket) -> None:
        """Start the threads that accept clients and the slot threads."""
        acceptor = Acceptor(listener, authenticate=self._authenticate, serve=self._converse, say=_say)
        threading.Thread(target=acceptor.run, daemon=True).start()
        for thread in self._threads:
            thread.start()

    def run(self) -> None:
        """Run calls until `leave`, then exit the contexts that calls and plugins entered; called in the main thread."""
        self._run_slot(self._main, self._inbox.get)
        if self._retiring:
            for thread in self._threads:
                thread.join()  # each of them sends the outcome of its last call first
            watchdog = threading.Timer(_HOOKS_S, os._exit, (0,))
            watchdog.daemon = True
            watchdog.start()
        try:
            self._calls.close_streams()
            environment.leave_contexts()
        finally:
            self._calls.close()
            # Python clears the names of modules that are left, and so closes files. Threads of this process refer to
            # this object to the end: it must not refer to functions, whose names would stay, but to the program.
            self._calls, self._program = self._no_calls(), sys.modules["__main__"]

    def leave(self, grace_s: float) -> None:
        """Interrupt running calls and make `run` return."""
        self._leaving, self.grace_s = True, grace_s
        for slot in self._slots:
            self._interrupt(slot.running)
            self._work.put(None)
        self._requests.abandon()
        self._inbox.put(None)

    def abandon(self) -> None:
        """Close the client's connection in a forked process."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _authenticate(self, sock: socket.socket) -> Connection:
        tune(sock)
        endpoint = worker_endpoint(self._place.node, self._start.index, self._start.generation)
        return accept(sock, bytes.fromhex(self._start.key), endpoint, bytes.fromhex(self._start.channel))

    def _converse(self, connection: Connection) -> None:
        """Serve an authenticated client until it disconnects; one thread per connection, and clients wait for each
        other.
        """
        with self._serving:
            if not self._leaving:
                self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        self._connection, self._calls = connection, self._no_calls()
        self._inbox.serve(connection)
        self._requests.abandon()
        shared.values.clear()
        if self._leaving:
            return  # output of the hooks at exit is still sent over this connection
        self._connection = None
        self._queued.clear()
        connection.close()

    def _take(self, frame: Frame) -> None:
        """Handle one message. Must not block: it runs in the thread that reads the socket."""
        try:
            self._sort(frame)
        except Exception:
            _say(traceback.format_exc())
            os._exit(1)  # an unknown message: fail fast; the agent reports it and starts a fresh worker

    def _sort(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.CALL:
                self._queued[frame.id] = id(frame)
                self._work.put(frame)
            case Kind.CANCEL | Kind.RECALL:
                self._stop(frame)
            case Kind.CREDIT:
                self._resume(frame, self._calls.wake(frame.id, decode(frame.head)["items"]))
            case Kind.GATHERED | Kind.CHECKPOINTED:
                self._requests.take(frame)
            case Kind.STACK:
                self._say_where(frame.id)
            case Kind.FUNCTION:
                self._calls.keep_function(frame)
            case Kind.CODE:
                self._calls.keep_code(frame)
            case Kind.SHARED:
                shared.values.keep(frame.head, frame.buffers)
            case Kind.FORGET:
                self._calls.forget(frame)
            case Kind.LOGGING:
                process.send_logs(int(decode(frame.head)["level"]), self.log)
            case Kind.SETUP | Kind.PLACE:
                self._inbox.put(frame)  # both are handled by the main thread between calls
            case _:
                raise WireError(f"A worker cannot be sent a message of kind {frame.kind}.")

    def _stop(self, frame: Frame) -> None:
        with self._claims:  # either a slot takes the call, or it is dropped here
            is_queued = self._queued.pop(frame.id, None) is not None
        if is_queued:
            self._send(Frame(Kind.DROPPED, frame.id), waits=False)
        elif frame.kind == Kind.CANCEL:
            self._interrupt(frame.id)
            self._resume(frame, self._calls.wake(frame.id, stop=True))  # also if it has just stopped running
            self._retiring |= any(slot.broke_import for slot in self._slots)  # no further call may start here

    def _resume(self, frame: Frame, slot: Slot | None) -> None:
        if slot is self._main:
            self._inbox.put(frame)
        elif slot is not None:
            self._shared.put(frame, slot)

    def _interrupt(self, call: int) -> None:
        for slot in self._slots:
            slot.interrupt(call)

    def _on_breakpoint(self, *args: Any, **more: Any) -> Any:
        """Open the debugger of the calling thread's call; PYTHONBREAKPOINT turns it off or names another one."""
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **more)
        from skyward.runner import debugger  # its imports would delay the start of every worker

        frame = sys._getframe().f_back
        assert frame
        return debugger.stop(frame, self._current()[0])

    def _say_where(self, call: int) -> None:
        """Send the stack of a call or of the set-up; called in a thread other than theirs."""
        busy = (slot for slot in self._slots if slot.running == call and (call != SETUP or self._setting_up))
        slot = next(busy, None)
        self._send(Frame(Kind.STACKS, call, encode(diagnosis.describe(slot.thread) if slot else {})), waits=False)

    def _run_slot(self, slot: Slot, get: Callable[[], Frame | None]) -> None:
        slot.attach()
        while (frame := get()) is not None:
            if frame.kind == Kind.SETUP:
                self._send(self._set_up(frame))
                continue
            if frame.kind == Kind.PLACE:
                self._move(bytes(frame.head).decode())
                continue
            answer = None
            started = time.perf_counter()
            try:
                if self._claim(frame, slot):
                    is_new = frame.kind == Kind.CALL
                    answer = self._calls.run(frame, slot, self._send) if is_new else self._calls.resume(frame.id)
                slot.end()
            except Interrupted as interrupt:
                slot.end()
                self._calls.drop_stream(frame.id)
                end_child(interrupt)
                answer = answer or failure(frame.id, interrupt, started)
            if (debugger := sys.modules.get("skyward.runner.debugger")) is not None:
                debugger.end()
            slot.unsent = answer is not None
            if answer is not None and answer.kind == Kind.ERROR:
                self._clear_device(slot)
            if answer is not None and not (self._leaving and slot.struck):  # else the outcome is not wanted
                self._conclude(answer, slot)
            frame = answer = None  # payloads must not live until the next call
            if self._retiring:
                return

    def _claim(self, frame: Frame, slot: Slot) -> bool:
        """Take a call, or a stream that goes on. Return False if the call was recalled, its client has disconnected or
        this process is ending.

        A recalled call may have been sent again and be queued behind this message: the client relies on calls beginning
        in the order in which they were sent.
        """
        with self._claims:
            if self._leaving or self._retiring:
                return False
            if frame.kind != Kind.CALL:
                slot.begin(frame.id)
                return True
            if self._queued.get(frame.id) != id(frame):
                return False
            slot.begin(frame.id)  # before the deletion: once the call is not queued, it can be interrupted
            del self._queued[frame.id]
            return True

    def _conclude(self, answer: Frame, slot: Slot) -> None:
        """Send the outcome of a call; if this process is to be replaced, report that after the last outcome."""
        if answer.kind == Kind.STALE or slot.broke_import or slot.broke_device:
            with self._claims:
                self._retiring = True
        self._send(answer)
        slot.unsent = False
        if not self._retiring or answer.kind == Kind.STALE:
            return
        with self._claims:  # if several slots finish at the same time, only one reports it
            is_last = not self._retired and not any(each.unsent for each in self._slots)
            self._retired |= is_last
        if is_last:
            self._send(Frame(Kind.STALE, answer.id))
            for _ in self._slots:
                self._work.put(None)
            self._inbox.put(None)

    def _clear_device(self, slot: Slot) -> None:
        """Free the GPU memory of a failed or stopped call before its outcome is sent.

        This waits for kernels. It is skipped for ranks, whose kernels may wait for a peer indefinitely, and while other
        calls run in this process, as they will reuse the memory.
        """
        if slot.broke_device or self._leaving or self._calls.is_grouped:
            return
        if all(each.running == IDLE for each in self._slots):
            slot.broke_device = not process.free_device_memory()

    def _move(self, document: str) -> None:
        """Update the node's place: its neighbours have changed."""
        self._place = replace(InstanceInfo.from_json(document), node=self._place.node, worker=self._place.worker)
        os.environ[ENV_VAR] = self._place.to_json()
        self._calls.move(self._place)

    def _set_up(self, frame: Frame) -> Frame:
        self._requests.begin_setup()
        self._setting_up = True
        try:
            return self._calls.setup(frame)
        finally:
            self._setting_up = False

    def _no_calls(self) -> Calls:
        return Calls(self._place, replaceable=self._start.slots == 1)

    def _send(self, frame: Frame, *, waits: bool = True) -> None:
        """Send to the client, if there is one. The thread that reads the socket must pass `waits=False`."""
        connection = self._connection
        if connection is not None:
            waits = waits and not sys.is_finalizing()  # the other threads have ended then
            try:
                connection.send(frame, by_writer=self._is_open_to_code()) if waits else connection.post(frame)
            except WireError:
                pass  # the client has disconnected, which the serving thread also notices

    def _is_open_to_code(self) -> bool:
        """Return whether code of the user's may run, and raise, anywhere in this thread: tracers, signal handlers."""
        if sys.gettrace() or sys.getprofile():
            return True
        return self._main.running != IDLE and self._main.is_current() and any(map(callable, map(getsignal, _HANDLED)))

    def _ask(self, frame: Frame) -> bool:
        """Send a request whose answer the calling thread will wait for; return False if none can come."""
        self._inbox.stand_in()
        with self._shield():  # user code can be interrupted at any time: before the frame or after it, not in it
            self._send(frame)
        return self._connection is not None and not self._leaving

    def _current(self) -> tuple[int | None, list[int]]:
        """Return the calling thread's call, None if it cannot be determined, and all running calls."""
        running = [slot.running for slot in self._slots if slot.running != IDLE]
        own = next((s.running for s in self._slots if s.running != IDLE and s.is_current()), None)
        if own is None:
            running += [SETUP] * self._setting_up
            own = running[0] if len(running) == 1 else None
        return own, [*running, *self._calls.streams]

    def write(self, task: int | None, stream: str, text: str) -> None:
        """Send output of user code; called by the replaced `sys.stdout` and `sys.stderr`."""
        frame = Frame(Kind.OUTPUT, task or NO_CALL, bytes((_number(stream),)) + text.encode("utf-8", "replace"))
        with self._shield():
            self._send(frame)

    def log(self, task: int | None, record: dict[str, Any]) -> None:
        """Send a record of Python's logging; called in the thread that logs."""
        frame = Frame(Kind.LOG, task or NO_CALL, encode(record))
        with self._shield():
            self._send(frame)

    def _shield(self) -> AbstractContextManager[None]:
        """Return a context that defers interrupts while a thread of user code does something indivisible."""
        for slot in self._slots:
            if slot.running != IDLE and slot.is_current():
                return slot.shield()
        return _UNSHIELDED


def _number(stream: str) -> int:
    return STDERR if stream == "stderr" else STDOUT


def _say(text: str) -> None:
    print(f"skyward worker: {text}", file=sys.__stderr__, flush=True)


def _obey(lines: TextIO, worker: Worker) -> None:
    """Wait for the agent's exit request or for its end; in a thread of its own."""
    try:
        for line in lines:
            if (grace_s := json.loads(line).get("exit")) is not None:
                worker.leave(grace_s)
    finally:  # if the agent is killed with unread data, the connection is reset instead of closed
        os._exit(1)  # the agent has ended: nothing could be reported any more


def main() -> None:
    """Run `python -m skyward.runner.worker FD`, where FD is the socket to the agent."""
    try:
        worker = _start(socket.socket(fileno=int(sys.argv[1])))
    except (SkywardError, RuntimeError) as error:
        told = explained(error)
        if not isinstance(told, SkywardError):
            raise
        _say(str(told))
        os._exit(2)  # without waiting for threads that may have been started
    worker.run()
    # Python's own end follows: it waits for threads, for half of the time that is left, then runs exit handlers
    limit = threading.Timer(worker.grace_s / 2, _end_without_threads)
    limit.daemon = True
    limit.start()
    atexit.register(limit.cancel)  # called once all threads have ended, before what the program registered


def _end_without_threads() -> None:
    """End the process although threads of the program run: in a thread of its own."""
    left = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    if left:
        _say(f"ended while {len(left)} of the program's threads ran: {', '.join(each.name for each in left)}")
    process_end.end(0)


def _start(control: socket.socket) -> Worker:
    """Create the worker that the agent requests.

    Its address is reported once all threads run: a worker whose threads cannot be started has failed to start.
    """
    lines = control.makefile("r", encoding="utf-8")
    start = WorkerStart(**json.loads(lines.readline()))
    listener, address = listen(Path(start.run_dir), f"w{start.index}.{start.generation}.sock")
    diagnosis.prepare_dump(diagnosis.dump_file(start))
    place = read_place()
    worker = Worker(start, place)
    process.modules_directory = Path.cwd() / CODE_DIR
    main_module.install(Path(start.run_dir) / f"main{start.index}.pickle")
    output.install(worker)

    def abandon() -> None:
        worker.abandon()
        listener.close()
        if (descriptor := control.detach()) >= 0:  # `close` would wait for the end of `lines`
            os.close(descriptor)

    on_fork(abandon)
    worker.start(listener)
    threading.Thread(target=_obey, args=(lines, worker), daemon=True).start()
    control.sendall(json.dumps({"listening": address}).encode() + b"\n")
    return worker


if __name__ == "__main__":
    main()
