"""The cost of a pool's machines, reported every hour and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from skyward.builder.events import Report, note
from skyward.providers.cloud.protocol import MachineOffer
from skyward.system import threading, time

_REPORT_EVERY_S = 3600.0


@dataclass(slots=True)
class _Use:
    """How long a machine has run, by this process' clock; `ended` is None while it runs."""

    offer: MachineOffer
    began: float
    ended: float | None = None

    def cost(self, now: float) -> float:
        """USD until now; 0 where the price is not known."""
        return (self.offer.hourly or 0.0) * ((self.ended or now) - self.began) / 3600


class CostMeter:
    """Counts each machine from its launch to its end.

    Args:
        report: receives the reports, from the first machine on.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def start(self, offer: MachineOffer, machines: Iterable[str]) -> None:
        """Count machines, given by their ids, at an offer's price."""
        now = time.monotonic()
        with self._lock:
            first = not self._uses
            self._uses.update((machine, _Use(offer, now)) for machine in machines)
        if first:
            threading.Thread(target=self._report_hourly, name="skyward-cost", daemon=True).start()

    def stop(self, machine: str) -> None:
        """Stop counting a machine that ended before the pool. Idempotent."""
        with self._lock:
            use = self._uses[machine]
            use.ended = use.ended or time.monotonic()

    def spent(self) -> float:
        """USD of all machines until now."""
        now = time.monotonic()
        with self._lock:
            return sum(use.cost(now) for use in self._uses.values())

    def hourly(self) -> float:
        """USD per hour of the machines that run."""
        with self._lock:
            return sum(use.offer.hourly or 0.0 for use in self._uses.values() if use.ended is None)

    def running(self) -> list[str]:
        """The machines that run."""
        with self._lock:
            return [machine for machine, use in self._uses.items() if use.ended is None]

    def end(self, *, has_ended: bool = True) -> None:
        """Count no more, and report the total if all machines have ended."""
        self._ended.set()
        if self._uses and has_ended:
            self._report_total("")

    def _report_hourly(self) -> None:
        while not self._ended.wait(_REPORT_EVERY_S):
            self._report_total(" so far")

    def _report_total(self, suffix: str) -> None:
        now = time.monotonic()
        with self._lock:
            uses = list(self._uses.values())
        counts = Counter(use.offer.type.name for use in uses if use.ended is None)
        what = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "machines"
        minutes = (now - min(use.began for use in uses)) / 60
        known = any(use.offer.hourly is not None for use in uses)
        price = f", about {sum(use.cost(now) for use in uses):.3f} USD" if known else ""
        self._report(note(f"{what} for {minutes:.1f} min{suffix}{price}"))
