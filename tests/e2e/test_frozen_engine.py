"""An engine that freezes: opening and leaving a pool take seconds, not minutes, and say what is wrong."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import EngineError
from tests.e2e.rights_functions import rights

LIMIT_S = 40.0


class _Proxy:
    """Stands before the engine's socket. Frozen, it takes connections as the kernel does for a stopped daemon."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.goes = threading.Event()
        self.goes.set()
        self._ended = False
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ended = True
        self.goes.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        self.goes.wait()
        with near, socket.socket(socket.AF_UNIX) as far, selectors.DefaultSelector() as selector:
            far.connect(os.environ["DOCKER_HOST"].removeprefix("unix://"))
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while not self._ended:
                for key, _ in selector.select(0.2):
                    self.goes.wait()
                    assert isinstance(key.fileobj, socket.socket)
                    try:
                        data = key.fileobj.recv(65536)
                        key.data.sendall(data)
                    except OSError:
                        return
                    if not data:
                        return


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[_Proxy]:
    proxy = _Proxy(tmp_path / "engine.sock")
    yield proxy
    proxy.close()


def test_leaving_a_pool_on_a_frozen_engine(proxy: _Proxy, engine: Any, containers: Callable[[str], list[Any]]) -> None:
    """So does that of the end; calls do not pass through the engine, and what is left ends by its lease."""
    pool = sky.ComputePool(sky.Docker(base_url=proxy.url), nodes=3, image=sky.Image(), ttl=20)
    began = 0.0
    with pytest.raises(EngineError, match=r"engine\.sock is frozen: .* restart it"), pool:
        proxy.goes.clear()
        assert len(rights() @ pool) == 3
        began = time.monotonic()
    assert time.monotonic() - began < LIMIT_S
    deadline = time.monotonic() + 60
    while containers(pool.id):
        assert time.monotonic() < deadline
        time.sleep(0.2)
