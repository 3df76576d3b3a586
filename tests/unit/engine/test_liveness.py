"""An engine that is frozen, and one that only takes long."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyward.engine import Engine, Images, address, client
from skyward.engine.address import EngineAddress, LiveSocket
from skyward.engine.images import load
from skyward.errors import EngineError, EngineMissingError
from tests.waiting import wait_until

PATIENCE_S = 60.0
_CONFLICT = b"conflict"  # an answer with that status


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is looked into soon. The answer to a ping has its usual time: an engine that lives is busy here too."""
    for name in ("_SILENCE_S", "_AGAIN_S"):
        monkeypatch.setattr(address, name, 0.1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For engines that answer no ping."""
    monkeypatch.setattr(address, "_PING_S", 0.1)


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


@pytest.mark.usefixtures("impatient")
def test_a_frozen_engine_is_named_and_what_to_do(tmp_path: Path) -> None:
    """It takes connections and answers nothing: by the SDK and without it, the first question and the next."""
    path = tmp_path / "e.sock"
    with _engine(path, lambda _: None):
        for _ in range(2):
            with pytest.raises(EngineMissingError, match=r"e\.sock is frozen: .* restart it .*end by their lease\."):
                Engine.connect(f"unix://{path}")
            with pytest.raises(EngineMissingError, match=r"is frozen"):
                Images(EngineAddress(path, "a test")).platform()


def test_the_next_questions_to_a_frozen_engine_wait_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving a pool asks several; together they must not take a multiple of the first."""
    monkeypatch.setattr(address, "_SILENCE_S", 1.0)
    monkeypatch.setattr(address, "_PING_S", 1.0)
    monkeypatch.setattr(address, "_AGAIN_S", 0.01)
    path, waited = tmp_path / "e.sock", []
    with _engine(path, lambda _: None):
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(EngineMissingError):
                Engine.connect(f"unix://{path}")
            waited.append(time.monotonic() - began)
    assert waited[0] >= 2.0
    assert sum(waited[1:]) < 1.0


def test_an_engine_that_takes_long_is_waited_for(tmp_path: Path) -> None:
    """As long as it answers pings; one that was frozen and goes on is as good as any."""
    path, pinged = tmp_path / "e.sock", threading.Event()
    address._frozen[f"unix://{path}"] = time.monotonic() - address._REMEMBERED_S

    def answer(request: bytes) -> bytes:
        if b"/_ping" in request:
            pinged.set()
        else:
            pinged.wait(PATIENCE_S)
        return b'{"Os": "linux", "Arch": "amd64"}'

    with _engine(path, answer):
        assert Images(EngineAddress(path, "a test")).platform() == "linux/amd64"
    assert f"unix://{path}" not in address._frozen


def test_a_container_that_takes_long_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is at it already, and does not end within the limit: it is not said to be missing."""
    monkeypatch.setattr(client, "_CALL_TIMEOUT_S", 0.5)
    path = tmp_path / "e.sock"

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"DELETE"):
            return _CONFLICT
        about = b'{"Version": "26.1", "ApiVersion": "1.45", "Os": "linux", "Arch": "amd64"}'
        return None if b"/wait" in request else about

    with _engine(path, answer), pytest.raises(EngineError, match=r"runs, but did not remove container c0ffee") as error:
        Engine.connect(f"unix://{path}").remove("c0ffee")
    assert not isinstance(error.value, EngineMissingError)


@pytest.mark.usefixtures("impatient")
def test_an_engine_that_takes_nothing_more_is_frozen(tmp_path: Path) -> None:
    """An image that is sent to it is broken off, where the kernel's buffers are full."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with (
            LiveSocket.connected(path, "unix:///e.sock", 60.0) as sock,
            pytest.raises(EngineMissingError, match="is frozen"),
        ):
            sock.sendall(bytes(1 << 24))


def test_what_an_engine_takes_slowly_arrives_whole(tmp_path: Path) -> None:
    """It pauses for longer than the silence after which it is asked whether it is there."""
    path, data, got, pinged = tmp_path / "e.sock", bytes(range(256)) * 8192, bytearray(), threading.Event()

    def answer(request: bytes) -> bytes | None:
        if b"/_ping" in request:
            pinged.set()
            return b"OK"
        pinged.wait(PATIENCE_S)
        got.extend(request)
        return None

    with _engine(path, answer), LiveSocket.connected(path, f"unix://{path}", 60.0) as sock:
        sock.sendall(data)
        wait_until(lambda: len(got) == len(data), PATIENCE_S)
    assert got == data


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


def test_connections_are_closed_that_nobody_needs(tmp_path: Path) -> None:
    """The pool's end closes those that were kept; the engine can be asked all the same afterwards."""
    path = tmp_path / "e.sock"
    about = b'{"Version": "26.1", "ApiVersion": "1.45", "Os": "linux", "Arch": "amd64", "NCPU": 2}'
    with _engine(path, lambda _: about):
        engine = Engine.connect(f"unix://{path}")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: engine.info, range(32)))
        before = connections()
        engine.close_idle()
        assert connections() < before
        for _ in range(2):
            assert engine.info["NCPU"] == 2
            engine.close_idle()


def connections() -> int:
    """How many sockets this process has."""
    return sum(file.is_socket() for file in Path("/proc/self/fd").iterdir())
