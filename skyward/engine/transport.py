"""The way by which the docker SDK talks to an engine: its own, over connections that notice a frozen engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool

from skyward.engine.liveness import LiveSocket


class EngineAdapter(UnixHTTPAdapter):
    """Requests to one engine.

    Args:
        url: the socket, as the SDK is given it.
        engine: the engine's address, for messages.
        timeout_s: silence for longer is an error, also of an engine that is alive.
    """

    def __init__(self, url: str, engine: str, timeout_s: int) -> None:
        self._engine = engine
        super().__init__(url.replace("unix://", "http+unix://"), timeout_s)

    def get_connection(self, url: Any, proxies: Any = None) -> Any:  # noqa: ARG002 - the SDK's signature
        """The pool of connections to the engine."""
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = _Pool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
                pool.engine = self._engine
                self.pools[url] = pool
        return pool

    def send(self, request: Any, *args: Any, **more: Any) -> Any:
        """Send a request. One without a time limit gets one for its first answer, and its stream then has none."""
        if more.get("timeout") is not None:
            return super().send(request, *args, **more)
        response = super().send(request, *args, **{**more, "timeout": self.timeout})
        stream: Any = response.raw
        stream._fp.fp.raw._sock.settimeout(None)  # as the SDK itself reaches it
        return response


class _Pool(UnixHTTPConnectionPool):
    engine: str

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
