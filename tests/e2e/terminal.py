"""A terminal for tests: a program on a pseudo terminal, what it has shown, and what is typed."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self


class Terminal:
    """A program that runs in a terminal of its own; leaving the `with` block ends it."""

    def __init__(self, words: Sequence[str], rows: int = 24, columns: int = 80, **env: str) -> None:
        self._ours, self._theirs = os.openpty()
        self.resize(rows, columns)
        inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        variables: Mapping[str, str] = {**inherited, "TERM": "xterm", **env}
        self.shown = b""
        self.process = subprocess.Popen(
            words,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            env=variables,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - it calls the kernel and nothing else
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def settings(self) -> list[Any]:
        """The settings of the terminal, which programs change and set back."""
        return termios.tcgetattr(self._theirs)

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size, of which the program in the foreground is told."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Wait until a string is shown that has not been waited for yet; all that was shown up to it."""
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(text.encode())) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown; this was: {self.shown.decode(errors='replace')}"
            if select.select([self._ours], [], [], min(left, 0.2))[0]:
                self.shown += os.read(self._ours, 65536)
        end = at + len(text.encode())
        before, self.shown = self.shown[:end], self.shown[end:]
        return before.decode(errors="replace")

    def wait(self, seconds: float = 60) -> int:
        """Wait for the end of the program, and read what it shows until then; its exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended; this was shown: {self.shown!r}"
            if select.select([self._ours], [], [], 0.05)[0]:
                self.shown += os.read(self._ours, 65536)
        while select.select([self._ours], [], [], 0.05)[0]:
            self.shown += os.read(self._ours, 65536)
        return int(self.process.returncode)
