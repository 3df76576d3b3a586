"""A terminal for tests: a program on a pseudo terminal, what it has shown, and what is typed."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
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
        return self.wait_match(re.escape(text), seconds)

    def wait_match(self, pattern: str, seconds: float = 120) -> str:
        """The same for what matches a pattern; without colours and control sequences."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.plain)) is None:
            ended = self.process.poll() is not None
            assert self._read(0.1) or not ended, f"the program ended without {pattern!r}:\n{self.plain}"
            assert time.monotonic() < deadline, f"{pattern!r} was not shown:\n{self.plain}"
        before, after = self.plain[: found.end()], self.plain[found.end() :]
        self.shown = after.encode()
        return before

    def wait(self, seconds: float = 120) -> int:
        """Wait for the end of the program, and read what it shows until then; its exit status."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            self._read(0.05)
            assert time.monotonic() < deadline, f"the program did not end:\n{self.plain}"
        while self._read(0.05):
            pass
        return int(self.process.returncode)

    @property
    def plain(self) -> str:
        """What has been shown and not been waited for, without colours and control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.decode(errors="replace")).replace("\r\n", "\n")

    def _read(self, seconds: float) -> bool:
        """Read what is there, or comes soon; whether there was anything."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.shown += os.read(self._ours, 65536)
        return True


def python(*words: str) -> list[str]:
    """The command line of a program of this interpreter."""
    return [sys.executable, *words]
