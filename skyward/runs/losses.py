"""Tolerates cuts of the connection to the machine of a run: reports them, and repeats what was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from skyward.errors import HostLostError
from skyward.system import time

PATIENCE_S = 60.0  # without an answer of the machine, after which it is given up
_RETRY_S = 1.0
T = TypeVar("T")


class Losses:
    """Says once that a machine does not answer, and once that it answers again.

    Args:
        host: the machine's name.
        run: the run's name.
        say: is told, in sentences.
        patience_s: how long it may be lost.
    """

    def __init__(self, host: str, run: str, say: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
        self._host, self._run, self._say, self._patience_s = host, run, say, patience_s
        self._since: float | None = None

    def note(self, error: HostLostError) -> None:
        """It was asked and did not answer; it may be asked again when this returns, a moment later.

        Raises:
            HostLostError: that has taken too long.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._say(f"{error} Run {self._run} may still run there; trying to reach it again.")
        elif now - self._since > self._patience_s:
            raise HostLostError(
                f"{self._host} has not answered for {now - self._since:.0f} s. Run {self._run} may still run there, "
                f"or have ended with the machine; the same command tries again. {error}"
            ) from error
        time.sleep(_RETRY_S)

    def over(self) -> None:
        """It has answered."""
        if self._since is not None:
            self._since = None
            self._say(f"{self._host} answers again.")

    def outlast(self, question: Callable[[], T]) -> T:
        """The answer to a question, which is asked until it is answered.

        Raises:
            HostLostError: as `note`.
        """
        while True:
            try:
                answer = question()
            except HostLostError as error:
                self.note(error)
                continue
            self.over()
            return answer
