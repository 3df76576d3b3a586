"""What happens to connections that a node cannot take."""

from __future__ import annotations

import queue
import socket
import threading

import pytest

from skyward.runner.clients import Acceptor


def test_a_connection_is_refused_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed, and told of; the next one is served."""
    served, said = queue.SimpleQueue[socket.socket](), queue.SimpleQueue[str]()
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, authenticate=lambda sock: sock, serve=served.put, say=said.put)
    threading.Thread(target=acceptor.run, daemon=True).start()

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", start)
        with socket.create_connection(listener.getsockname()) as first:
            assert first.recv(1) == b""
    assert "No more threads can be started" in said.get(timeout=60)
    with socket.create_connection(listener.getsockname()) as second, served.get(timeout=60) as taken:
        assert taken.getpeername() == second.getsockname()
