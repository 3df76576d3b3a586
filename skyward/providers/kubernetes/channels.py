"""Streams into a pod through the API server: port forwarding and programs, over the protocol of WebSocket channels.

A message is a byte for its channel and the content. https://kubernetes.io/docs/concepts/workloads/pods/ has no page of
it; it is that of the kubelet's streaming server, `v4.channel.k8s.io`.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Sequence
from typing import Any

from skyward.providers.kubernetes.api import ClusterApi
from skyward.system import socket, threading
from skyward.wire.tls import splice

_CHUNK = 1 << 16
_FINAL, _BINARY, _CLOSE, _PING, _PONG = 0x80, 2, 8, 9, 10
_NO_MASK = bytes(
    4
)  # the mask protects proxies from chosen plain text; what we send is inside TLS, or typed by the user
_SHORT, _LONG = 126, 127
STDIN, STDOUT, STDERR, STATUS = range(4)


class ChannelSocket:
    """The socket of a WebSocket, as one stream of bytes: what is sent goes to channel 0, what is received is of one.

    It has the part of a TLS socket's interface that `skyward.wire.tls.splice` uses.

    Args:
        sock: connected, after the WebSocket's handshake.
        channel: whose content is received.
        skipped: bytes at the beginning of each channel that are not content.
    """

    def __init__(self, sock: Any, channel: int, skipped: int = 0) -> None:
        self._sock, self._channel, self._skip = sock, channel, skipped
        self._arrived = bytearray()  # of the stream of frames
        self._ready = bytearray()  # content that nobody has taken yet
        self._begun: set[int] = set()
        self._sending, self._count = b"", 0  # a frame that is partly sent, and the bytes of content in it
        self._pongs = b""
        self.others: dict[int, bytearray] = {}  # content of the other channels

    def fileno(self) -> int:
        """For poll(2)."""
        number: int = self._sock.fileno()
        return number

    def setblocking(self, flag: bool) -> None:
        """As of sockets."""
        self._sock.setblocking(flag)

    def recv_into(self, space: memoryview) -> int:
        """Receive content; 0 at its end. Raises what the socket raises when there is none now."""
        while not self._ready:
            data = self._sock.recv(_CHUNK)
            self._arrived += data
            if not data or not self._unpack():
                return 0
        count = min(len(space), len(self._ready))
        space[:count] = self._ready[:count]
        del self._ready[:count]
        return count

    def send(self, content: memoryview) -> int:
        """Send content; the bytes that were taken. One that could not be sent in whole is to be sent again."""
        if not self._sending:
            part = bytes(content[:_CHUNK])
            self._sending = self._pongs + _frame(_BINARY, b"\0" + part)
            self._count, self._pongs = len(part), b""
        while self._sending:
            self._sending = self._sending[self._sock.send(self._sending) :]
        return self._count

    def unwrap(self) -> None:
        """Say goodbye, if that takes no waiting."""
        self._sock.send(_frame(_CLOSE, b""))
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.unwrap()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _unpack(self) -> bool:
        """Take the frames that have arrived in whole; False if the other end has closed the WebSocket."""
        while len(self._arrived) >= 2:
            kind, length = self._arrived[0] & 0x0F, self._arrived[1] & 0x7F
            head = {_SHORT: 4, _LONG: 10}.get(length, 2)
            if len(self._arrived) < head:
                return True
            if length >= _SHORT:
                (length,) = struct.unpack_from("!H" if length == _SHORT else "!Q", self._arrived, 2)
            if len(self._arrived) < head + length:
                return True
            content = bytes(self._arrived[head : head + length])
            del self._arrived[: head + length]
            if kind == _CLOSE:
                return bool(self._ready)
            if kind == _PING:
                self._pongs += _frame(_PONG, content)
            elif content:
                self._take(content[0], content[1:])
        return True

    def _take(self, channel: int, content: bytes) -> None:
        if channel not in self._begun:
            self._begun.add(channel)
            content = content[self._skip :]
        if channel == self._channel:
            self._ready += content
        else:
            self.others.setdefault(channel, bytearray()).extend(content)


def _frame(kind: int, content: bytes) -> bytes:
    """A frame of a client, which has to carry a mask."""
    size = len(content)
    if size < _SHORT:
        head = struct.pack("!BB", _FINAL | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", _FINAL | kind, 0x80 | _SHORT, size)
    else:
        head = struct.pack("!BBQ", _FINAL | kind, 0x80 | _LONG, size)
    return head + _NO_MASK + content


def forward(api: ClusterApi, pod: str, port: int) -> socket.socket:
    """A socket that leads to a port on a pod's loopback. That nobody listens there shows when it is read.

    Raises:
        ProviderError: the API server refuses, or cannot be reached.
    """
    websocket = api.websocket(f"pods/{pod}/portforward", [("ports", str(port))])
    return _served(ChannelSocket(websocket.sock, 0, skipped=2), f"{pod}-forward")  # the two bytes are the port's number


def execute(api: ClusterApi, pod: str, command: Sequence[str]) -> tuple[socket.socket, ChannelSocket]:
    """Run a program in a pod: a socket that is its standard input and output, and what has the rest.

    Raises:
        ProviderError: the API server refuses, or cannot be reached.
    """
    streams = [(name, "true") for name in ("stdin", "stdout", "stderr")]
    words = [("container", "node"), *(("command", word) for word in command), *streams]
    websocket = api.websocket(f"pods/{pod}/exec", words)
    channels = ChannelSocket(websocket.sock, STDOUT)
    return _served(channels, f"{pod}-exec"), channels


def _served(channels: ChannelSocket, name: str) -> socket.socket:
    near, far = socket.socketpair()
    threading.Thread(target=splice, args=(far, channels), name=name, daemon=True).start()
    return near
