"""What a pool's machines cost, told while they run and when they have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from skyward.build.events import Report, note
from skyward.providers.aws.terms import Offer
from skyward.system import threading, time

_SAY_EVERY_S = 3600.0  # AWS bills by the second; people think in hours


@dataclass(slots=True)
class _Use:
    """A machine's time, on this process' clock; `ended` is None while it runs."""

    offer: Offer
    began: float
    ended: float | None = None

    def cost(self, now: float) -> float:
        """What it has come to, in USD; 0 where AWS told no price."""
        return (self.offer.hourly or 0.0) * ((self.ended or now) - self.began) / 3600


class Meter:
    """Counts from the launch, says every hour what it has come to, and once more at the end.

    Args:
        report: is told, from the first machine on.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def start(self, offer: Offer, machines: Iterable[str]) -> None:
        """Machines, by their ids, were launched at an offer's price."""
        now = time.monotonic()
        with self._lock:
            first = not self._uses
            self._uses.update((machine, _Use(offer, now)) for machine in machines)
        if first:
            threading.Thread(target=self._say_hourly, name="skyward-meter", daemon=True).start()

    def stop(self, machine: str) -> None:
        """A machine was ended before the others; a second time changes nothing."""
        with self._lock:
            use = self._uses[machine]
            use.ended = use.ended or time.monotonic()

    def end(self) -> None:
        """All machines have ended."""
        self._ended.set()
        if self._uses:
            self._say("")

    def _say_hourly(self) -> None:
        while not self._ended.wait(_SAY_EVERY_S):
            self._say(" so far")

    def _say(self, until: str) -> None:
        now = time.monotonic()
        with self._lock:
            uses = list(self._uses.values())
        counts = Counter(use.offer.type.name for use in uses if use.ended is None)
        what = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "machines"
        minutes = (now - min(use.began for use in uses)) / 60
        known = any(use.offer.hourly is not None for use in uses)
        price = f", about {sum(use.cost(now) for use in uses):.3f} USD" if known else ""
        self._report(note(f"{what} for {minutes:.1f} min{until}{price}"))
