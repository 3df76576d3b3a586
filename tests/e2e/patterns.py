"""A terminal for tests that wait for what a pattern finds in its text."""

from __future__ import annotations

import os
import re
import select
import sys
import time

from tests.e2e.terminal import Terminal

_LIMIT_S = 120.0


class PatternTerminal(Terminal):
    """A terminal of which all text is kept.

    Attributes:
        text: what was shown, as it came.
    """

    text = ""
    _seen = 0

    @property
    def plain(self) -> str:
        """What was shown, without colours and control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text).replace("\r\n", "\n")

    def wait_match(self, pattern: str) -> str:
        """Read until `pattern` has come after what was waited for before; what was read for it."""
        deadline = time.monotonic() + _LIMIT_S
        while (found := re.search(pattern, self.plain[self._seen :])) is None:
            ended = self.process.poll() is not None
            come = self._read()
            assert come or not ended, f"the program ended without {pattern!r}:\n{self.plain}"
            assert time.monotonic() < deadline, f"{pattern!r} did not come:\n{self.plain}"
        start, self._seen = self._seen, self._seen + found.end()
        return self.plain[start : self._seen]

    def wait_end(self) -> int:
        """Read to the program's end; its exit status."""
        deadline = time.monotonic() + _LIMIT_S
        while self.process.poll() is None:
            self._read()
            assert time.monotonic() < deadline, f"the program did not end:\n{self.plain}"
        while self._read():
            pass
        return int(self.process.returncode)

    def _read(self) -> bool:
        """Read what is there, or comes soon; whether there was anything."""
        if not select.select([self._ours], [], [], 0.1)[0]:
            return False
        self.text += os.read(self._ours, 65536).decode(errors="replace")
        return True


def python(*words: str) -> list[str]:
    """The command line of a program of this interpreter."""
    return [sys.executable, *words]
