"""The threads of a worker: slots, in which calls run and are interrupted, and the inbox that reads the socket.

An interrupt is raised only in the call that it is meant for: it names the call, and is dropped if that call is no
longer running. While a slot is shielded (it writes to the socket), the interrupt is deferred.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from skyward.errors import WireError
from skyward.system import SimpleQueue, threading, time
from skyward.wire.exceptions import Stopping
from skyward.wire.frames import Connection, Frame

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"  # file name of its frames
IDLE = 0  # no call has this id
_REPEAT_S = 0.05
LONG_S = 0.005
_PARK_AFTER = 10  # intervals of LONG_S without a call, after which the second thread sleeps until the next one


# slots ----------------------------------------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt, Stopping):
    """Raised in a call that the client cancelled or that ran out of time."""


class Slot:
    """A thread that runs one call at a time.

    Attributes:
        running: id of the running call, `IDLE` if there is none. Set only by the slot's own thread.
        unsent: whether it has taken a call whose outcome has not been sent yet.
        thread: identifier of that thread.
        struck: whether an interrupt has been raised in the running or last call, whose
            result is then not its own outcome.
        broke_import: whether an interrupt was raised while that call imported a module. Modules may then be partly
            initialised, and extension modules cannot be imported again in the same process.
        broke_device: whether a kernel of that call failed in a way that makes CUDA unusable in this process.
    """

    def __init__(self) -> None:
        self.running = IDLE
        self.thread = 0
        self.struck = self.broke_import = self.broke_device = self.unsent = False
        self._target = IDLE
        self._shielded = 0

    def attach(self) -> None:
        """Make the calling thread this slot's thread."""
        self.thread = threading.get_ident()

    def is_current(self) -> bool:
        """Return whether the caller runs in this slot's thread."""
        return self.thread == threading.get_ident()

    def begin(self, call: int) -> None:
        """Record the call that starts; called, like `end`, in the slot's own thread."""
        self.struck = self.broke_import = self.broke_device = False
        self.unsent = True  # before `running`: once that is set, an interrupt can leave this function
        self.running = call

    def end(self) -> None:
        """Record that the call has ended. A pending interrupt is dropped, and no further one is raised."""
        self.running = IDLE

    def interrupt(self, call: int) -> bool:
        """Raise `Interrupted` in this call if it runs here; return whether it did."""
        if call == IDLE or self.running != call:
            return False
        self._target = call
        self._signal()
        return True

    def _signal(self) -> None:
        raise NotImplementedError

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Defer interrupts while the block runs; one that arrives meanwhile is raised at its end."""
        self._begin_shield()
        try:
            yield
        finally:
            self._shielded -= 1
        self.deliver()

    def _begin_shield(self) -> None:
        self._shielded += 1

    def deliver(self) -> None:
        """Raise the pending interrupt if it is meant for the running call; called in the slot's own thread."""
        if self._shielded or self._target == IDLE:
            return
        due, self._target = self._target == self.running, IDLE
        if due:
            self._strike(sys._getframe())
            raise Interrupted("the call was interrupted by the client")

    def _strike(self, frame: FrameType | None) -> None:
        self.struck = True
        self.broke_import |= _is_importing(frame)


class MainSlot(Slot):
    """The main thread. It is interrupted by a signal, which also ends blocking system calls."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGINT, self._on_signal)

    def _signal(self) -> None:
        """Send the signal until it takes effect: one that arrives just before a system call does not interrupt it."""
        signal.pthread_kill(self.thread, signal.SIGINT)
        again = threading.Timer(_REPEAT_S, self._insist)
        again.daemon = True
        again.start()

    def _insist(self) -> None:
        if self.running != IDLE and self.running == self._target:
            self._signal()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.deliver()


class ThreadSlot(Slot):
    """Any other thread. An interrupt reaches it at its next Python instruction, after a blocking C call has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.RLock()  # held by its own thread, also in destructors, and by those that interrupt it

    def attach(self) -> None:
        """See `Slot.attach`."""
        super().attach()
        # Threads that calls start inherit this: at its end Python waits for those, as ever, and not for this one.
        threading.current_thread()._daemonic = False  # type: ignore[attr-defined]

    def interrupt(self, call: int) -> bool:
        """See `Slot.interrupt`."""
        with self._guard:
            return super().interrupt(call)

    def _signal(self) -> None:
        if not self._shielded:
            self._strike(sys._current_frames().get(self.thread))
            self._raise(Interrupted)

    def _begin_shield(self) -> None:
        """Begin the shield; an interrupt that was raised but has not arrived yet is deferred to its end."""
        with self._guard:
            if self.struck:
                self._raise(None)
            self._shielded += 1

    def end(self) -> None:
        """See `Slot.end`."""
        while True:
            try:
                with self._guard:
                    self.running = IDLE
                    if self.struck:
                        self._raise(None)
            except Interrupted:
                continue  # it arrived before it could be withdrawn
            return

    def _raise(self, exception: type[BaseException] | None) -> None:
        """Raise it in the slot's thread, replacing one that has not arrived yet; None withdraws that one."""
        value = None if exception is None else ctypes.py_object(exception)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), value)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the stack of this frame is importing a module."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


class SlotQueue:
    """The queue of several slots: messages for any of them, and for a particular one."""

    def __init__(self) -> None:
        self._shared = deque[Frame | None]()
        self._own: dict[Slot, SimpleQueue[Frame | None]] = {}
        self._idle: list[Slot] = []
        self._lock = threading.Lock()

    def put(self, frame: Frame | None, slot: Slot | None = None) -> None:
        """Queue a message, for one slot or for any."""
        with self._lock:
            if slot is None and self._idle:
                slot = self._idle.pop()
            elif slot in self._idle:
                self._idle.remove(slot)
            if slot is None:
                self._shared.append(frame)
            else:
                self._own[slot].put(frame)

    def get(self, slot: Slot) -> Frame | None:
        """Wait for the next message that this slot may take, and return it."""
        with self._lock:
            own = self._own.setdefault(slot, SimpleQueue())
            if own.empty():
                if self._shared:
                    return self._shared.popleft()
                self._idle.append(slot)
        return own.get()


# the socket -----------------------------------------------------------------------------------------------------------


class Inbox:
    """Reads a worker's socket: in its main thread between calls, in a second thread while a call takes long.

    Passing a call from a reading thread to the main thread costs an extra wake-up, a third of a round trip where the
    two run on different cores (measured: 170 against 100 us, in containers), so the main thread reads the socket
    itself. When it has been busy for `LONG_S` the second thread takes over, so that cancellations, stream credits and
    the end of the connection are always noticed; it returns the socket with the next message for the main thread.

    The main thread calls `get`; the thread that accepts clients calls `serve`.
    """

    def __init__(self, handle: Callable[[Frame], None]) -> None:
        self._handle = handle
        self._work: SimpleQueue[Frame | None] = SimpleQueue()
        self._handed_over = False  # whether the main thread was waiting when the last message was put
        self._reading = threading.Lock()
        self._connection: Connection | None = None
        self._ended = threading.Event()
        self._busy_since = 0.0  # 0 while the main thread waits for work
        self._parked = True
        self._wake = threading.Event()
        threading.Thread(target=self._watch, name="stand-in", daemon=True).start()

    def serve(self, connection: Connection) -> None:
        """Read this connection until it ends."""
        self._ended.clear()
        self._connection = connection
        self._work.put(_LOOK)
        self._ended.wait()

    def put(self, frame: Frame | None) -> None:
        """Queue a message for the main thread; None tells it to end, even while it waits."""
        self._handed_over = self._handed_over or not self._busy_since
        self._work.put(frame)
        connection = self._connection
        if frame is None and connection is not None:
            connection.stop_reading()

    def get(self) -> Frame | None:
        """Return the next message for the main thread, which counts as busy until it calls `get` again."""
        self._busy_since = 0.0
        frame: Frame | None = _LOOK
        while frame is _LOOK:
            while self._work.empty() and self._connection is not None and self._reading.acquire(blocking=False):
                try:
                    self._read_for_myself()
                finally:
                    self._reading.release()
            frame = self._work.get()
        self._busy_since = time.perf_counter()
        if self._parked:
            self._parked = False
            self._wake.set()
        return frame

    def stand_in(self) -> None:
        """Make the second thread read at once: the main thread is about to wait for a message while busy."""
        self._wake.set()

    def _read(self, connection: Connection) -> None:
        try:
            frames = connection.receive()
        except WireError:
            frames = []  # the client has disconnected; the agent's lease decides what follows
        if not frames:
            self._connection = None
            self._ended.set()
        for frame in frames:
            self._handle(frame)

    def _watch(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            quiet = 0
            while quiet < _PARK_AFTER:
                asked = self._wake.wait(LONG_S)
                self._wake.clear()
                since = self._busy_since
                if since and (asked or time.perf_counter() - since >= LONG_S):
                    self._read_for_main()
                quiet = 0 if since else quiet + 1
            self._parked = True
            if self._busy_since:  # a call that began meanwhile may not have seen `_parked`, and not woken this thread
                self._parked = False
                self._wake.set()

    def _read_for_myself(self) -> None:
        connection = self._connection
        if connection is not None and self._work.empty():  # the other thread may just have read a message
            self._read(connection)

    def _read_for_main(self) -> None:
        with self._reading:
            while (connection := self._connection) is not None:
                self._handed_over = False
                self._read(connection)
                if self._handed_over:
                    break
        if not self._busy_since:
            self._work.put(_LOOK)  # the main thread may have found the socket taken, and be waiting in `get`


_LOOK = Frame(0, 0)  # makes the main thread check for a connection to read
