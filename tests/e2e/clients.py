"""Clients in processes of their own, which tests interrupt and end."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time

PATIENCE_S = 120.0  # for the client to come to the point in question; a machine may be busy
SOON_S = 30.0  # from Ctrl-C to the end of the client; a second or two on an idle machine

CLIENT = """
import sys, time
import skyward as sky

IMAGE = sky.Image({image})

@sky.compute
def work():
    print("at work", flush=True)
    {work}

{extra}

try:
    with sky.ComputePool(sky.{provider}(), image=IMAGE, {pool}) as pool:
        print("pool", pool.id, flush=True)
        {body}
    print("left the pool", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


class Client:
    """A client in a process of its own, watched line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen = ""
        assert process.stdout and process.stderr
        self._open = {process.stdout.fileno(), process.stderr.fileno()}

    def wait_for(self, words: str, within_s: float = PATIENCE_S) -> None:
        """Read until the client has printed these words, on either stream."""
        deadline = time.monotonic() + within_s
        while words not in self.seen:
            assert self._open and time.monotonic() < deadline, f"no {words!r} in:\n{self.seen}"
            self._read(0.1)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, within_s: float = SOON_S) -> int:
        """Wait for its end; its exit status."""
        deadline = time.monotonic() + within_s
        while self._open:
            assert time.monotonic() < deadline, f"it still runs after {within_s} s:\n{self.seen}"
            self._read(0.1)
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    @property
    def pool(self) -> str:
        """Identifier of its pool, from any line that says it."""
        return self.said(r"\bpool[ :]+([0-9a-f]{8})\b")

    def said(self, pattern: str) -> str:
        """The group of a pattern in what it has printed."""
        found = re.search(pattern, self.seen)
        assert found, self.seen
        return found[1]

    def _read(self, timeout_s: float) -> None:
        for fd in select.select(list(self._open), [], [], timeout_s)[0]:
            data = os.read(fd, 65536)
            self.seen += data.decode(errors="replace")
            if not data:
                self._open.discard(fd)
