"""The docker SDK's HTTP adapter over connections that notice a frozen engine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from queue import Empty, Full
from typing import Any

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from skyward.engine.address import LiveSocket


class EngineAdapter(UnixHTTPAdapter):
    """Requests to one engine.

    Args:
        url: the socket, in the SDK's form.
        engine: the engine's address, for messages.
        timeout_s: limit of silence, also for a live engine.
    """

    def __init__(self, url: str, engine: str, timeout_s: int) -> None:
        self._engine = engine
        super().__init__(url.replace("unix://", "http+unix://"), timeout_s)

    def get_connection(self, url: Any, proxies: Any = None) -> Any:  # noqa: ARG002 - the SDK's signature
        """Return the pool of connections to the engine."""
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = _Pool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
                pool.engine = self._engine
                self.pools[url] = pool
        return pool

    def close_idle(self) -> None:
        """Close idle connections; those in use are kept, and new ones can be opened."""
        with self.pools.lock:
            pools = [self.pools[url] for url in self.pools.keys()]  # noqa: SIM118 - urllib3's container cannot be iterated
        for pool in pools:
            pool.close_idle()

    def send(self, request: Any, *args: Any, **more: Any) -> Any:
        """Send a request. Without a time limit, only the first answer is limited, not the following stream."""
        if more.get("timeout") is not None:
            return super().send(request, *args, **more)
        response = super().send(request, *args, **{**more, "timeout": self.timeout})
        stream: Any = response.raw
        stream._fp.fp.raw._sock.settimeout(None)  # the way the SDK itself accesses it
        return response


class _Pool(UnixHTTPConnectionPool):
    engine: str

    def close_idle(self) -> None:
        """Close the connections kept for later requests."""
        waiting: Any = self.pool
        idle = []
        with suppress(Empty):
            while True:
                idle.append(waiting.get(block=False))
        for connection in idle:
            if connection is not None:
                connection.close()
            with suppress(Full):
                waiting.put(None, block=False)  # a placeholder for a connection that may be opened

    def _new_conn(self) -> Any:
        timeout: Any = self.timeout
        connection = _Connection(self.base_url, self.socket_path, timeout)
        connection.engine = self.engine
        return connection


class _Connection(UnixHTTPConnection):
    engine: str

    def connect(self) -> None:
        """Connect to the engine's socket; raises OSError."""
        self.sock = LiveSocket.connected(Path(self.unix_socket), self.engine, self.timeout)
