"""Stream sockets between simulated processes: limited buffers, delays, cuts, resets; listeners known by their path."""

from __future__ import annotations

import errno
import itertools
import socket as real
from collections import deque
from typing import Any, Self

from tests.sim import kernel
from tests.sim.kernel import FOREVER, Thread

LOCAL_S = 0.0


class Link:
    """One direction between two machines.

    Attributes:
        latency_s: how long a byte takes.
        shut_until: until when nothing arrives; what is sent meanwhile fills the sender's buffer.
    """

    def __init__(self, latency_s: float) -> None:
        self.latency_s, self.shut_until = latency_s, 0.0
        self.pipes: list[Pipe] = []

    def cut(self, seconds: float) -> None:
        """Let nothing arrive for so long."""
        k = kernel.K
        self.shut_until = max(self.shut_until, k.now + seconds)
        k.note("cut", seconds)

    def heal(self) -> None:
        """Let everything arrive again, unless another cut of it lasts longer."""
        if kernel.K.now < self.shut_until - 1e-9:
            return
        self.shut_until = 0.0
        for pipe in self.pipes:
            pipe.wake()


class Pipe:
    """One direction of a connection; what is in it counts against its capacity until it has been read."""

    def __init__(self, link: Link, capacity: int) -> None:
        self.link, self.capacity = link, capacity
        self.chunks: deque[tuple[float, memoryview]] = deque()
        self.size = 0
        self.last = 0.0
        self.ended = FOREVER  # when the end arrives
        self.reset = False  # whether the end is a reset
        self.gone = False  # whether nobody can read any more
        self.waiters: list[Thread] = []
        link.pipes.append(self)

    def arrival(self, sent: float) -> float:
        k = kernel.K
        jitter = self.link.latency_s * (0.5 + k.rng.random())
        self.last = max(self.last, sent + jitter)
        return self.last

    def wake(self) -> None:
        for waiter in self.waiters:
            kernel.K.ready(waiter)

    def due(self) -> float:
        """When something can be read."""
        first = self.chunks[0][0] if self.chunks else self.ended
        return max(first, self.link.shut_until) if first != FOREVER else FOREVER

    def end(self, *, reset: bool) -> None:
        if self.ended == FOREVER:
            self.ended, self.reset = self.arrival(kernel.K.now), reset
            self.wake()


class Listener:
    """What listens under a path."""

    def __init__(self, sock: Socket) -> None:
        self.sock = sock
        self.backlog: deque[Socket] = deque()
        self.waiters: list[Thread] = []


class Network:
    """All sockets of a simulation.

    Attributes:
        links: from a pair of machines, by name, to the direction between them; processes of one machine share a name.
    """

    def __init__(self) -> None:
        self.listeners: dict[str, Listener] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.capacity = 16 * 1024

    def link(self, sender: str, to: str) -> Link:
        return self.links.setdefault((sender, to), Link(0.0))


N: Network = None  # type: ignore[assignment]  # of the simulation that runs now


class Socket:
    """A simulated `socket.socket`."""

    _numbers = itertools.count(1)

    def __init__(self, *_: int) -> None:
        self.family, self.type, self.proto = real.AF_UNIX, real.SOCK_STREAM, 0
        self._timeout: float | None = None
        self._closed = self._shut_read = False
        self._in: Pipe | None = None
        self._out: Pipe | None = None
        self._path = ""
        self._listener: Listener | None = None
        self.process = kernel.K.enter().process
        self.number = next(Socket._numbers)
        self.process.sockets[self.number] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # set-up ----------------------------------------------------------------------------------------------------

    def bind(self, path: str) -> None:
        self._path = path

    def listen(self, _backlog: int = 0) -> None:
        kernel.K.point()
        self._listener = N.listeners[self._path] = Listener(self)

    def accept(self) -> tuple[Socket, str]:
        k = kernel.K
        me = k.point()
        listener = self._listener
        assert listener is not None
        listener.waiters.append(me)
        try:
            while not listener.backlog:
                self._check()
                k.park("accept", self)
        finally:
            listener.waiters.remove(me)
        self._check()
        return listener.backlog.popleft(), ""

    def connect(self, path: str) -> None:
        k = kernel.K
        k.point()
        listener = N.listeners.get(path)
        if listener is None or listener.sock._closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        mine, theirs = machine(self.process), machine(listener.sock.process)
        there, back = N.link(mine, theirs), N.link(theirs, mine)
        k.sleep(there.latency_s + back.latency_s)
        deadline = FOREVER if self._timeout is None else k.now + self._timeout
        while (shut := max(there.shut_until, back.shut_until)) > k.now:
            if shut > deadline:
                k.sleep(deadline - k.now)
                raise TimeoutError("timed out")
            k.sleep(shut - k.now)
        if listener.sock._closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        other = Socket.__new__(Socket)
        other.family, other.type, other.proto = real.AF_UNIX, real.SOCK_STREAM, 0
        other._timeout, other._closed, other._shut_read = None, False, False
        other._path, other._listener, other.process = "", None, listener.sock.process
        other.number = next(Socket._numbers)
        other.process.sockets[other.number] = other
        self._out = other._in = Pipe(there, N.capacity)
        self._in = other._out = Pipe(back, N.capacity)
        listener.backlog.append(other)
        for waiter in listener.waiters:
            k.ready(waiter)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def setblocking(self, flag: bool) -> None:
        self._timeout = None if flag else 0.0

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, *_: object) -> int:
        return 0

    def fileno(self) -> int:
        return -1 if self._closed else 1_000_000 + self.number

    def getsockname(self) -> Any:
        return self._path

    # data ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def _wait(self, pipe: Pipe, what: str, flags: int, deadline: float, until: float) -> None:
        k = kernel.K
        if flags & real.MSG_DONTWAIT or self._timeout == 0.0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        me = k.current
        pipe.waiters.append(me)
        try:
            if not k.park(what, self, min(deadline, until)) and k.now >= deadline:
                raise TimeoutError("timed out")
        finally:
            pipe.waiters.remove(me)

    def _deadline(self) -> float:
        return FOREVER if self._timeout is None else kernel.K.now + self._timeout

    def recv_into(self, target: Any, nbytes: int = 0, flags: int = 0) -> int:
        k = kernel.K
        k.point()
        self._check()
        pipe, deadline = self._in, self._deadline()
        if pipe is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        view = memoryview(target)[: nbytes or None]
        while (due := pipe.due()) > k.now:
            if self._shut_read:
                return 0
            self._wait(pipe, "recv", flags, deadline, due)
            self._check()
        done = 0
        while pipe.chunks and pipe.chunks[0][0] <= k.now and done < len(view):
            arrived, chunk = pipe.chunks.popleft()
            part = min(len(chunk), len(view) - done)
            view[done : done + part] = chunk[:part]
            done += part
            if part < len(chunk):
                pipe.chunks.appendleft((arrived, chunk[part:]))
        if done:
            pipe.size -= done
            pipe.wake()
            return done
        if pipe.reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer, 0, flags)])

    def _room(self, flags: int, deadline: float) -> int:
        """Wait until something can be sent; how much."""
        pipe = self._out
        while True:
            self._check()
            if pipe is None or pipe.gone or pipe.ended != FOREVER:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            if pipe.size < pipe.capacity:
                return pipe.capacity - pipe.size
            self._wait(pipe, "send", flags, deadline, FOREVER)

    def _put(self, data: memoryview) -> None:
        pipe = self._out
        assert pipe is not None
        if not data:
            return
        pipe.chunks.append((pipe.arrival(kernel.K.now), data))
        pipe.size += len(data)
        pipe.wake()

    def sendmsg(self, parts: Any, _ancillary: Any = (), flags: int = 0) -> int:
        kernel.K.point()
        deadline = self._deadline()
        room = self._room(flags, deadline)
        data = memoryview(b"".join(parts))[:room]
        self._put(data)
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        return self.sendmsg([data], (), flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        k = kernel.K
        k.point()
        view, deadline = memoryview(bytes(data)), self._deadline()
        while True:
            room = self._room(flags, deadline)
            self._put(view[:room])
            view = view[room:]
            if not view:
                return

    # the end ---------------------------------------------------------------------------------------------------

    def shutdown(self, how: int) -> None:
        kernel.K.point()
        self._check()
        if self._in is None or self._out is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        self._shutdown(how)

    def _shutdown(self, how: int) -> None:
        assert self._in is not None and self._out is not None
        if how in (real.SHUT_RD, real.SHUT_RDWR):
            self._shut_read = True
            self._in.gone = True
            self._in.wake()
        if how in (real.SHUT_WR, real.SHUT_RDWR):
            self._out.end(reset=False)

    def close(self) -> None:
        k = kernel.K
        if k is None or k.over:
            return
        k.enter()
        self._end()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.process.sockets.pop(self.number, None)
        if self._in is not None and self._out is not None:
            self._in.gone = True
            self._in.wake()
            self._out.end(reset=bool(self._in.chunks))
            self._out.wake()
        if self._listener is not None:
            if N.listeners.get(self._path) is self._listener:
                del N.listeners[self._path]
            for waiter in self._listener.waiters:
                kernel.K.ready(waiter)
            for waiting in self._listener.backlog:
                waiting._end()

    def end_of_process(self) -> None:
        """Its process has ended."""
        self._end()

    def break_off(self) -> None:
        """The connection is reset on both sides, as when what carried it was killed."""
        if self._in is not None and self._out is not None:
            for pipe in (self._in, self._out):
                pipe.gone = True
                pipe.end(reset=True)


def machine(process: kernel.Process) -> str:
    """The machine that a process runs on; its processes reach each other at once."""
    return process.name.partition(":")[0]


def socketpair(*_: object) -> tuple[Socket, Socket]:
    one, other = Socket(), Socket()
    link = Link(0.0)
    one._out = other._in = Pipe(link, 64 * 1024)
    one._in = other._out = Pipe(link, 64 * 1024)
    return one, other


class SocketModule:
    """The module `socket`."""

    socket = Socket
    socketpair = staticmethod(socketpair)
    __name__ = "socket"

    def __getattr__(self, name: str) -> Any:
        if name.isupper() or name in {"timeout", "error", "gaierror", "herror", "AddressFamily", "SocketKind"}:
            return getattr(real, name)
        raise AttributeError(f"the simulated network has no socket.{name}")


class SelectModule:
    """The module `select`; nothing of what is simulated uses it yet."""

    __name__ = "select"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated network has no select.{name}")
