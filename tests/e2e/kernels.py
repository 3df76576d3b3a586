"""A real kernel for tests: cells are sent to it, and what it publishes is sorted by the cell that it belongs to."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any, Self

from jupyter_client.manager import KernelManager

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Cell:
    """What has been published for one cell so far.

    Attributes:
        idle: set when the kernel has run it.
        published: type and content of each message, in their order.
    """

    def __init__(self) -> None:
        self.idle = threading.Event()
        self.published: list[tuple[str, dict[str, Any]]] = []

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [content for found, content in self.published if found == kind]

    def printed(self, stream: str = "stdout") -> str:
        """What was printed to a stream."""
        return "".join(content["text"] for content in self._of("stream") if content["name"] == stream)

    @property
    def traceback(self) -> str:
        """The traceback of the error that ended it, without colours; "" if none did."""
        return _COLOUR.sub("", "\n".join(line for content in self._of("error") for line in content["traceback"]))

    @property
    def result(self) -> str:
        """Its last expression's value as text."""
        return "".join(content["data"]["text/plain"] for content in self._of("execute_result"))


class Kernel:
    """A kernel of this Python for the time of a `with` block."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self._cells: dict[str, Cell] = defaultdict(Cell)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self.manager.start_kernel(env=dict(os.environ))
        self._client = self.manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()
        self.manager.cleanup_resources()

    def send(self, code: str) -> Cell:
        """Send a cell and do not wait for it."""
        return self._cells[self._client.execute(code)]

    def run(self, code: str, *, fails: bool = False) -> Cell:
        """Run a cell to its end."""
        cell = self.send(code)
        assert cell.idle.wait(120), cell.published
        assert bool(cell.traceback) == fails, cell.traceback
        return cell

    def _read(self) -> None:
        socket = self._client.iopub_channel.socket
        while not self._ended.is_set():
            if not socket.poll(100):
                continue
            _, message = self._client.session.recv(socket)
            cell, kind = self._cells[message["parent_header"].get("msg_id", "")], message["msg_type"]
            if kind != "status":
                cell.published.append((kind, message["content"]))
            elif message["content"]["execution_state"] == "idle":
                cell.idle.set()


def wait_until_printed(cell: Cell, text: str, limit_s: float = 30) -> None:
    """Wait until a cell has printed a string to standard output."""
    end = time.monotonic() + limit_s
    while text not in cell.printed():
        assert time.monotonic() < end, cell.published
        time.sleep(0.02)
