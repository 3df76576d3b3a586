"""Programs on a node that connect their standard streams to sockets, and the client's end of the multiplexed one.

`python -m ...relay PORT` is a node's end of `skyward forward`: many TCP connections through one byte stream, with a
`Relay` at both ends. A frame has one byte for its kind, four for the number of the connection, four for the length of
its content. Each connection may have `WINDOW` bytes in flight in each direction, so that one that is not read does not
block the others.

`python -m ...relay DIRECTORY ADDRESS` connects to a runner's socket, for containers in which a client can only run
programs. The data is authenticated by client and runner; this program holds no key.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from skyward.errors import WireError
from skyward.system import SimpleQueue, socket, threading
from skyward.wire.frames import dial

WINDOW = 1 << 19
_PART = 1 << 16  # bytes per read from a multiplexed connection
_CHUNK = 1 << 18  # bytes per read from anything else
_CONNECT_S = 10.0
_HEAD = struct.Struct(">BII")
_COUNT = struct.Struct(">I")
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing the socket resets its connection
Open = Callable[[], socket.socket]


def main() -> int:
    """Connect to the port of this node, or to the socket of its runner, named by the arguments."""
    return _serve_port(int(sys.argv[1])) if len(sys.argv) == 2 else _serve_runner(Path(sys.argv[1]), sys.argv[2])


def _serve_port(port: int) -> int:
    """Connect to the port for each connection of the client, until standard input ends."""

    def connect() -> socket.socket:
        sock = socket.create_connection(("localhost", port), _CONNECT_S)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    relay = Relay(_write_out, connect)
    while data := os.read(0, _CHUNK):
        relay.feed(data)
    return 0


def _serve_runner(directory: Path, address: str) -> int:
    """Pass bytes on in both directions until the runner closes the connection."""
    try:
        sock = dial(directory, address)
    except WireError as error:
        os.write(2, f"{error}\n".encode())
        return 1
    sock.settimeout(None)
    threading.Thread(target=_pass_inwards, args=(sock,), daemon=True).start()
    with suppress(OSError):  # one of the ends has closed
        while data := sock.recv(_CHUNK):
            _write_out(data)
    return 0


def _pass_inwards(sock: socket.socket) -> None:
    with suppress(OSError):  # the runner has closed it, which the other direction notices
        while data := os.read(0, _CHUNK):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)


def _write_out(data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


class Kind(IntEnum):
    """The kind of a frame."""

    OPEN = 1
    DATA = 2
    END = 3  # this direction has ended
    RESET = 4  # both directions have ended with an error; the content may give the reason
    TAKEN = 5  # this many bytes have been passed on


class Relay:
    """One end of the byte stream.

    Args:
        write: sends bytes through the stream; called by one thread at a time.
        dial: opens the connection for one accepted at the other end; raises OSError.
        on_refused: called at the accepting end with the reason why the other end could not connect.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        dial: Open | None = None,
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._write, self._dial, self._on_refused = write, dial, on_refused
        self._writing, self._lock = threading.Lock(), threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self._last = 0
        self._data = bytearray()

    def accept(self, sock: socket.socket) -> None:
        """Connect this socket through the stream to the other end."""
        with self._lock:
            self._last += 1
            connection = self._connections[self._last] = _Connection(self, self._last)
        self.send(Kind.OPEN, connection.number)
        connection.start(lambda: sock)

    def feed(self, data: bytes) -> None:
        """Process bytes received from the stream. Never blocks.

        Raises:
            WireError: the data is not from a relay.
        """
        self._data += data
        while len(self._data) >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(self._data)
            if kind not in Kind._value2member_map_ or length > WINDOW:
                raise WireError(f"A node's relay sent no frame: {bytes(self._data[:80])!r}.")
            if len(self._data) < _HEAD.size + length:
                return
            content = bytes(self._data[_HEAD.size : _HEAD.size + length])
            del self._data[: _HEAD.size + length]
            self._take(Kind(kind), number, content)

    def end(self) -> None:
        """Reset all connections because the stream has ended."""
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.reset()

    def send(self, kind: Kind, number: int, content: bytes = b"") -> None:
        """Send a frame; do nothing if the stream has ended, as that ends all connections."""
        with self._writing, suppress(OSError):
            self._write(_HEAD.pack(kind, number, len(content)) + content)

    def forget(self, number: int) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._connections.pop(number, None)

    def _take(self, kind: Kind, number: int, content: bytes) -> None:
        if kind == Kind.OPEN:
            if self._dial is None:
                raise WireError("A node's relay cannot open connections to here.")
            with self._lock:
                connection = self._connections[number] = _Connection(self, number)
            connection.start(self._dial)
            return
        with self._lock:
            known = self._connections.get(number)
        if known is None:
            return  # it has ended here, and the other end will be notified
        if kind == Kind.RESET and content:
            self._on_refused(content.decode(errors="replace"))
        known.take(kind, content)


class _Connection:
    """One connection: its socket, one thread that reads it and one that writes it."""

    def __init__(self, relay: Relay, number: int) -> None:
        self.number = number
        self._relay = relay
        self._sock: socket.socket | None = None
        self._news = threading.Condition()
        self._room, self._broken = WINDOW, False
        self._arrived: SimpleQueue[bytes | None] = SimpleQueue()

    def start(self, make: Open) -> None:
        threading.Thread(target=self._run, args=(make,), name=f"relay-{self.number}", daemon=True).start()

    def take(self, kind: Kind, content: bytes) -> None:
        match kind:
            case Kind.DATA:
                self._arrived.put(content)
            case Kind.END:
                self._arrived.put(None)
            case Kind.RESET:
                self.reset()
            case Kind.TAKEN:
                with self._news:
                    self._room += _COUNT.unpack(content)[0]
                    self._news.notify_all()

    def reset(self) -> None:
        """End it at once, waking both threads."""
        with self._news:
            self._broken = True
            sock = self._sock
            self._news.notify_all()
        self._arrived.put(None)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _run(self, make: Open) -> None:
        """Open the connection and read it to its end (a thread of its own)."""
        try:
            sock = make()
        except OSError as error:
            self._relay.send(Kind.RESET, self.number, (error.strerror or str(error)).encode())
            self._relay.forget(self.number)
            return
        with self._news:
            self._sock = sock
        writer = threading.Thread(target=self._write, args=(sock,), name=f"relay-{self.number}-in", daemon=True)
        writer.start()
        self._read(sock)
        writer.join()
        if self._broken:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        sock.close()
        self._relay.forget(self.number)

    def _read(self, sock: socket.socket) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._room > 0 or self._broken)
                room = self._room
                if self._broken:
                    return
            try:
                data = sock.recv(min(room, _PART))
            except OSError:
                self._break()
                return
            if not data:
                self._relay.send(Kind.END, self.number)
                return
            with self._news:
                self._room -= len(data)
            self._relay.send(Kind.DATA, self.number, data)

    def _write(self, sock: socket.socket) -> None:
        """Write received data to the socket (a thread of its own)."""
        try:
            while (data := self._arrived.get()) is not None:
                sock.sendall(data)
                self._relay.send(Kind.TAKEN, self.number, _COUNT.pack(len(data)))
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._break()

    def _break(self) -> None:
        if not self._broken:
            self._relay.send(Kind.RESET, self.number)
        self.reset()


if __name__ == "__main__":
    sys.exit(main())
