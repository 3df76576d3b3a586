"""Probes with UDP datagrams whether what one node sends reaches another, for each direction separately.

A connection needs both directions, so it cannot tell which of them fails. Here a node opens a port, sends to those of
all others, and then says whose datagrams have come. The client leads every step, so that all have sent before any of
them counts. Nothing that arrives is answered or passed on, and what does not bear the trial's secret is dropped.
"""

from __future__ import annotations

import hmac
import struct
from typing import Any

from skyward.system import select, socket, threading, time

_SENT = 10  # datagrams for each other node: a network that loses some still lets others through
_PAUSE_S = 0.05
_NODE = struct.Struct("!I")
_LARGEST = 64  # bytes; of ours 36


class UdpProbe:
    """One node's part in trials, one at a time."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._lock = threading.RLock()  # a step may be asked for while one that took too long still runs
        self._socket: socket.socket | None = None
        self._secret = b""
        self._heard: set[int] = set()

    def take(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do a step, and give its answer.

        `open` {"address", "secret"} answers {"port"}, 0 where this node has no such address; `send` {"peers"}, a list
        of [node, address, port], takes half a second; `close` answers {"heard"}, the nodes whose datagrams have come.
        """
        with self._lock:
            match order["step"]:
                case "open":
                    return {"port": self._open(order["address"], bytes.fromhex(order["secret"]))}
                case "send":
                    self._send(order["peers"])
                    return {}
                case "close":
                    return {"heard": self.close()}
            raise ValueError(f"step {order['step']!r}")

    def close(self) -> list[int]:
        """Give up the port; the nodes that were heard."""
        with self._lock:
            if self._socket is not None:
                self._collect(0.0)
                self._socket.close()
                self._socket = None
            return sorted(self._heard)

    def _open(self, address: str, secret: bytes) -> int:
        self.close()
        self._secret, self._heard = secret, set()
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            listener.bind((address, 0))  # that address alone; one that is translated on its way here is nobody's
        except OSError:
            listener.close()
            return 0
        except BaseException:  # an address of another type than text
            listener.close()
            raise
        self._socket = listener
        port: int = listener.getsockname()[1]
        return port

    def _send(self, peers: list[tuple[int, str, int]]) -> None:
        word = self._secret + _NODE.pack(self._node)
        for _ in range(_SENT):
            for _node, address, port in peers:
                try:
                    if self._socket is not None:
                        self._socket.sendto(word, (address, port))
                except OSError:
                    continue  # no route, or refused: it will not be heard, which is what is to be found out
            self._collect(_PAUSE_S)

    def _collect(self, wait_s: float) -> None:
        """Note who is heard from, for so long."""
        end = time.monotonic() + wait_s
        while self._socket is not None:
            ready, _, _ = select.select([self._socket], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return
            try:
                word = self._socket.recv(_LARGEST)
            except OSError:
                continue  # word of a datagram of ours that was refused
            if len(word) == len(self._secret) + _NODE.size and hmac.compare_digest(word[: -_NODE.size], self._secret):
                self._heard.add(*_NODE.unpack(word[-_NODE.size :]))
