"""Costs of machines: the order in which offers are tried, the amount that a pool has spent, and the end of its budget.

The client ends the machines of a pool whose budget is spent. Each machine is also told at its launch when that is due
at the latest, and its guard shuts it down some seconds later, with or without a client. The cost is the machines' time
at their price at the launch; disks and traffic are not included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from skyward.builder.events import Report, note
from skyward.errors import BudgetSpentError, ConfigError, ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import Cloud, MachineOffer, MachineType, Market
from skyward.system import threading, time

T = TypeVar("T")
AllocationStrategy = Literal["spot-if-available", "spot", "always-spot", "on-demand", "cheapest"]
_MARKETS: dict[AllocationStrategy, tuple[Market, ...]] = {
    "spot-if-available": ("spot", "on-demand"),
    "spot": ("spot",),
    "always-spot": ("spot",),
    "on-demand": ("on-demand",),
    "cheapest": ("spot", "on-demand"),
}
_ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "arm64"}
_MAX_TYPES = 6  # types that are priced and tried; the next ones are several times as large
_CPU_WEIGHT, _GB_WEIGHT = 8.0, 1.0  # a processor costs about as much as 8 GiB: for the order before prices are known
_MIN_CPUS, _MIN_GB = 2, 4.0
WARN_AT = 0.8  # part of the budget
_LOOK_S = 1.0


def strategy_of(allocation: object) -> AllocationStrategy:
    """Return the strategy of `allocation=`; "spot-if-available" for None.

    Raises:
        ConfigError: there is no such strategy.
    """
    for known in get_args(AllocationStrategy):
        if allocation == known or (allocation is None and known == "spot-if-available"):
            return known  # type: ignore[no-any-return]
    choices = ", ".join(map(repr, get_args(AllocationStrategy)))
    raise ConfigError(f"allocation must be one of {choices}; found {allocation!r}.")


def find_offers(cloud: Cloud, request: PoolRequest) -> list[MachineOffer]:
    """Return the offers for a pool, in the order in which they are to be tried.

    Raises:
        ConfigError: the cloud has no such accelerator, or there is no such allocation.
        ProviderError: there is no offer, or none within the budget.
    """
    strategy = strategy_of(request.allocation)
    found = cloud.offers(request, _MARKETS[strategy])
    if not found:
        markets = " or ".join(_MARKETS[strategy])
        raise ProviderError(f"No machine in {cloud.region} fits the pool ({markets}). Ask for other machines.")
    rank = {market: 0 if strategy == "cheapest" else number for number, market in enumerate(_MARKETS[strategy])}
    # those of one price stay in the cloud's order
    found = sorted(found, key=lambda each: (rank[each.market], math.inf if each.hourly is None else each.hourly))
    return affordable(found, request.nodes, request.max_hourly_cost, request.budget)


def affordable(
    offers: Sequence[MachineOffer], nodes: int, max_hourly_cost: float | None, budget: float | None
) -> list[MachineOffer]:
    """Return the offers whose machines together cost at most this much, in USD per hour.

    With a limit or a budget, offers of unknown price are left out.

    Raises:
        ProviderError: there is none; the message names the cheapest.
    """
    if max_hourly_cost is None and budget is None:
        return list(offers)
    priced = [offer for offer in offers if offer.hourly is not None]
    if not priced:
        raise ProviderError(
            "budget= and max_hourly_cost= need prices, but the price of no suitable machine is known. Nothing was "
            "launched. Leave them out, or ask for other machines."
        )
    limit = math.inf if max_hourly_cost is None else max_hourly_cost
    found = [offer for offer in priced if (offer.hourly or 0.0) * nodes <= limit]
    if not found:
        cheapest = min(priced, key=lambda offer: offer.hourly or 0.0).text(nodes)
        raise ProviderError(
            f"No offer is within max_hourly_cost={limit:g} USD for {nodes} machines together, and nothing was "
            f"launched. The cheapest is {cheapest}."
        )
    return found


def of_accelerator(known: Mapping[str, T], request: PoolRequest, otherwise: T, provider: str, example: str) -> T:
    """Return the entry for a pool's accelerator, `otherwise` without one or for an unknown one with `machine=`.

    Raises:
        ConfigError: there is no entry of that name.
    """
    asked = request.accelerator
    if asked is None or (request.machine and asked.name not in known):
        return otherwise
    if asked.name not in known:
        raise ConfigError(
            f"{provider} knows no machine with the accelerator {asked.name!r}; it knows {', '.join(sorted(known))}. Or "
            f"name {example}."
        )
    return known[asked.name]


def suitable(listed: Sequence[MachineType], request: PoolRequest, region: str) -> list[MachineType]:
    """Return the types that are large enough for a pool's nodes, approximately the cheapest first; at most six.

    Without `cpus` and `memory_gb` a machine has at least 2 processors and 4 GiB. A type named by `machine` is accepted
    whatever its number of processors and memory.

    Args:
        listed: the types of that name, or of the families in question.
        request: the pool.
        region: the cloud's region in messages.

    Raises:
        ProviderError: there is none, or it has too few GPUs or another architecture.
    """
    machine, platform = request.machine, request.platform
    found = [
        each
        for each in listed
        if each.platform == platform
        and each.gpus >= request.gpus
        and (machine or each.cpus >= (request.cpus or _MIN_CPUS))
        and (machine or each.memory_gb >= (request.memory_gb or _MIN_GB))
    ]
    if not found:
        raise ProviderError(
            f"{region} has no machine type with {_requirements(request)} for {_ARCHITECTURES[platform]}; found "
            f"{', '.join(map(_size, listed[:4])) or 'none of that name'}. Ask for less, name another region, or set "
            "architecture=."
        )
    # a machine with fewer excess GPUs comes before one with cheaper processors
    return sorted(found, key=lambda each: (each.gpus, each.cpus * _CPU_WEIGHT + each.memory_gb * _GB_WEIGHT))[
        :_MAX_TYPES
    ]


def _requirements(request: PoolRequest) -> str:
    accelerator, cpus, memory_gb = request.accelerator, request.cpus, request.memory_gb
    asked = [f"the name {request.machine}"] if request.machine else []
    asked += [f"{accelerator.name}:{accelerator.count}"] if accelerator else []
    asked += [f"{cpus:g} processors"] if cpus else []
    asked += [f"{memory_gb:.4g} GiB"] if memory_gb else []
    return ", ".join(asked) or f"{_MIN_CPUS} processors"


def _size(each: MachineType) -> str:
    gpus = f"{each.gpus} GPUs, " if each.gpus else ""
    return f"{each.name} ({gpus}{each.cpus} processors, {each.memory_gb:g} GB, {_ARCHITECTURES[each.platform]})"


@dataclass(slots=True)
class _Use:
    """The running time of a machine, by this process's clock; `ended` is None while it runs."""

    offer: MachineOffer
    began: float
    ended: float | None = None

    def cost(self, now: float) -> float:
        """Return the USD until now; 0 if the price is unknown."""
        return (self.offer.hourly or 0.0) * ((self.ended or now) - self.began) / 3600


class Costs:
    """What the machines of a pool cost, each from its launch to its end, and the USD that they may cost.

    Args:
        pool: identifier of the pool.
        budget: the USD; None for no limit.
        report: receives the warning, and the total.
        spent: called once with a sentence when nothing is left, in a separate thread.
    """

    def __init__(self, pool: str, budget: float | None, report: Report, spent: Callable[[str], None]) -> None:
        self._pool, self._budget, self._report, self._spent = pool, budget, report, spent
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began = time.monotonic()

    def start(self, offer: MachineOffer, machines: Iterable[str]) -> None:
        """Start counting machines, given by their ids, at an offer's price."""
        now = time.monotonic()
        with self._lock:
            self._uses.update((machine, _Use(offer, now)) for machine in machines)

    def stop(self, machine: str) -> None:
        """Stop counting a machine that has ended before the pool. Idempotent."""
        with self._lock:
            use = self._uses[machine]
            use.ended = use.ended or time.monotonic()

    def spent(self) -> float:
        """Return the USD of all machines until now."""
        now = time.monotonic()
        with self._lock:
            return sum(use.cost(now) for use in self._uses.values())

    def hourly(self) -> float:
        """Return the USD per hour of the running machines."""
        with self._lock:
            return sum(use.offer.hourly or 0.0 for use in self._uses.values() if use.ended is None)

    def running(self) -> list[str]:
        """Return the running machines."""
        with self._lock:
            return [machine for machine, use in self._uses.items() if use.ended is None]

    def report_total(self) -> None:
        """Report the total, if there were machines."""
        with self._lock:
            uses = list(self._uses.values())
        if not uses:
            return
        counts = Counter(use.offer.type.name for use in uses if use.ended is None)
        what = ", ".join(f"{count} x {name}" for name, count in counts.items()) or "machines"
        minutes = (time.monotonic() - min(use.began for use in uses)) / 60
        known = any(use.offer.hourly is not None for use in uses)
        price = f", about {self.spent():.3f} USD" if known else ""
        self._report(note(f"{what} for {minutes:.1f} min{price}"))

    # the budget

    def watch(self) -> None:
        """Start watching the budget, if there is one."""
        self._began = time.monotonic()
        if self._budget is not None:
            threading.Thread(target=self._watch, name=f"skyward-{self._pool}-budget", daemon=True).start()

    def end(self) -> None:
        """Stop watching it."""
        self._ended.set()

    def left_s(self, more: float = 0.0) -> float:
        """Return the seconds until it is spent by the running machines, and by others for `more` USD per hour."""
        hourly = self.hourly() + more
        if self._budget is None or not hourly:
            return math.inf
        return max(0.0, self._budget - self.spent()) / hourly * 3600

    def check(self) -> None:
        """Refuse to rent machines once it is spent.

        Raises:
            BudgetSpentError: it is spent.
        """
        if self._budget is not None and self.spent() >= self._budget:
            raise BudgetSpentError(self._text())

    def _watch(self) -> None:
        assert self._budget
        warned = False
        while not self._ended.wait(min(_LOOK_S, max(0.05, self.left_s()))):
            spent = self.spent()
            if spent >= self._budget:
                self._spent(self._text())
                return
            if spent >= WARN_AT * self._budget and not warned:
                warned = True
                self._report(
                    note(
                        f"pool {self._pool} has spent {spent / self._budget:.0%} of its budget of {self._budget:g} "
                        f"USD; its machines will be ended in about {_in_words(self.left_s())}"
                    )
                )

    def _text(self) -> str:
        return (
            f"Pool {self._pool} has spent its budget of {self._budget:g} USD after "
            f"{_in_words(time.monotonic() - self._began)}, and its machines were ended. Open a pool with a larger "
            "budget=, or with fewer or cheaper machines."
        )


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
