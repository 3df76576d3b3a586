"""A pool's budget: when it is spent, who is warned, and who ends the machines.

The client ends them. Each machine also knows when that is due, and its guard shuts it down some seconds later, whether
or not a client is there. What counts is the time of machines at their price at the launch; disks and traffic do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from skyward.builder.events import Report, note
from skyward.errors import BudgetSpentError
from skyward.providers.cloud.cost import CostMeter
from skyward.providers.cloud.protocol import MachineOffer
from skyward.system import threading, time

WARN_AT = 0.8  # of the budget
GUARD_LATER_S = 10.0  # by which a machine's own guard comes after the client
_LOOK_S = 1.0
_LONGEST_S = 1e8  # three years; the scripts on machines take nine digits


class Budget:
    """The USD that a pool may spend.

    Args:
        usd: how many.
        pool: identifier of the pool.
        meter: counts what it spends.
        report: receives the warning.
        spent: is told once, in a sentence, that nothing is left, in a thread of its own.
    """

    def __init__(self, usd: float, pool: str, meter: CostMeter, report: Report, spent: Callable[[str], None]) -> None:
        self._usd, self._pool, self._meter, self._report, self._spent = usd, pool, meter, report, spent
        self._ended = threading.Event()
        self._began = time.monotonic()

    def begin(self) -> None:
        """Watch it from now on."""
        self._began = time.monotonic()
        threading.Thread(target=self._watch, name=f"skyward-{self._pool}-budget", daemon=True).start()

    def end(self) -> None:
        """Watch it no more."""
        self._ended.set()

    def left_s(self, offer: MachineOffer | None = None, nodes: int = 0) -> float:
        """Seconds until it is spent by the machines that run, and by so many more of an offer."""
        hourly = self._meter.hourly() + (nodes * (offer.hourly or 0.0) if offer is not None else 0.0)
        left = max(0.0, self._usd - self._meter.spent())
        return min(_LONGEST_S, left / hourly * 3600) if hourly else _LONGEST_S

    def guard_s(self, offer: MachineOffer | None = None, nodes: int = 0) -> float:
        """Seconds after which a machine ends itself."""
        return math.ceil(self.left_s(offer, nodes) + GUARD_LATER_S)

    def longest_s(self, offer: MachineOffer) -> float:
        """Seconds after which one machine of an offer has spent it alone."""
        left = max(0.0, self._usd - self._meter.spent())
        return min(_LONGEST_S, math.ceil(left / (offer.hourly or math.inf) * 3600 + GUARD_LATER_S))

    def check(self) -> None:
        """Refuse to rent anything once it is spent.

        Raises:
            BudgetSpentError: it is.
        """
        if self._meter.spent() >= self._usd:
            raise BudgetSpentError(self._text())

    def _watch(self) -> None:
        warned = False
        while not self._ended.wait(min(_LOOK_S, max(0.05, self.left_s()))):
            spent = self._meter.spent()
            if spent >= self._usd:
                self._spent(self._text())
                return
            if spent >= WARN_AT * self._usd and not warned:
                warned = True
                self._report(
                    note(
                        f"pool {self._pool} has spent {spent / self._usd:.0%} of its budget of {self._usd:g} USD; its "
                        f"machines will be ended in about {_in_words(self.left_s())}"
                    )
                )

    def _text(self) -> str:
        return (
            f"Pool {self._pool} has spent its budget of {self._usd:g} USD after "
            f"{_in_words(time.monotonic() - self._began)}, and its machines are ended. Open a pool with a larger "
            "budget=, or with fewer or cheaper machines."
        )


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
