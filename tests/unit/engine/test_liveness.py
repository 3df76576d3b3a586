"""An engine that is frozen, and one that only takes long."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyward.engine import Engine, Images, address, client
from skyward.engine.address import EngineAddress
from skyward.engine.images import load
from skyward.errors import EngineError, EngineMissingError

PATIENCE_S = 60.0
_CONFLICT = b"conflict"  # an answer with that status


@contextmanager
def _engine(path: Path, answer: Callable[[bytes], bytes | None]) -> Iterator[None]:
    """Listens at a path, as an engine that gives these answers; None leaves a request without one."""
    ended, held = threading.Event(), list[socket.socket]()

    def serve() -> None:
        while not ended.is_set():
            near, _ = server.accept()
            threading.Thread(target=speak, args=(near,), daemon=True).start()

    def speak(near: socket.socket) -> None:
        held.append(near)
        try:
            while request := near.recv(4096):
                given = answer(request)
                if given is not None:
                    status, content = (
                        (b"409 Conflict", b'{"message": "in progress"}') if given == _CONFLICT else (b"200 OK", given)
                    )
                    near.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(content), content))
        except OSError:
            pass  # the other side has read as much of an answer as it wanted

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        ended.set()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        thread.join(60)
        for each in held:
            each.close()


def test_a_frozen_engine_is_named_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and answers nothing; further questions to it, as the end of a pool has, wait less."""
    monkeypatch.setattr(address, "_PING_S", 1.0)
    monkeypatch.setattr(address, "_AGAIN_S", 0.01)
    path = tmp_path / "e.sock"
    began = time.monotonic()
    with _engine(path, lambda _: None):
        for _ in range(20):
            with pytest.raises(EngineMissingError, match=r"e\.sock is frozen: .* restart it .*end by their lease\."):
                Engine.connect(f"unix://{path}")
            with pytest.raises(EngineMissingError, match=r"is frozen"):
                Images(EngineAddress(path, "a test")).platform()
    assert 1.0 < time.monotonic() - began < 10.0


def test_a_container_that_takes_long_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is at it already, and does not end within the limit: it is not said to be missing."""
    monkeypatch.setattr(client, "_CALL_TIMEOUT_S", 0.5)
    path = tmp_path / "e.sock"

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"DELETE"):
            return _CONFLICT
        about = b'{"Version": "26.1", "ApiVersion": "1.45", "Os": "linux", "Arch": "amd64"}'
        return None if b"/wait" in request else about

    with _engine(path, answer), pytest.raises(EngineError, match=r"did not remove container c0ffee") as error:
        Engine.connect(f"unix://{path}").remove("c0ffee")
    assert not isinstance(error.value, EngineMissingError)


def test_an_engine_that_ends_within_a_load_leaves_no_socket(tmp_path: Path) -> None:
    """A rented machine may end at any time; a forgotten socket is a ResourceWarning, and thereby an error here."""

    def end(server: socket.socket) -> None:
        near, _ = server.accept()
        with near:
            near.recv(16)

    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=end, args=[server], daemon=True)
        thread.start()
        with pytest.raises(EngineMissingError):
            load(EngineAddress(path, "a test"), "a:1", [b"layer"])
        thread.join(PATIENCE_S)
    gc.collect()
