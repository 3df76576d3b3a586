"""Several providers for one pool: they are tried in an order, and the first that can give all its hosts does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from skyward.build.events import note
from skyward.errors import ConfigError, EngineError, PoolClosedError, ProviderError, SkywardError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.providers.base import Host, Provider, Terms

if TYPE_CHECKING:
    from skyward.build.events import Report

# a function gets a provider and its price for the whole pool (USD per hour, None where it is not known), and gives a
# number: the provider with the lowest is tried first
Rank: TypeAlias = "Callable[[Provider, float | None], float]"
Selection: TypeAlias = 'Literal["cheapest", "first"] | Rank'
_CANNOT = (ProviderError, EngineError)  # these say that a provider cannot give hosts now; another one may


@dataclass(frozen=True)
class Choice:
    """Providers, and the order in which they are tried: what `ComputePool(provider=[...], selection=...)` means.

    A pool has all its hosts of one provider. One that rents nothing costs nothing.

    Attributes:
        providers: at least one.
        selection: "cheapest" (of equals the one listed first), "first" for the order of the list, or a function of a
            provider and its price in USD per hour that gives its rank, the lowest first.
        terms: what a pool asks of machines that are rented for it; the pool sets it.

    Raises:
        ConfigError: there is no provider, or no such selection.
    """

    providers: tuple[Provider, ...]
    selection: Selection = "cheapest"
    terms: Terms = field(default=Terms(), repr=False)
    _chosen: dict[str, Provider] = field(default_factory=dict, repr=False, compare=False)
    _hosts: dict[str, list[Host]] = field(default_factory=dict, repr=False, compare=False)
    _expected: dict[str, tuple[Image, Cluster]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.providers:
            raise ConfigError("provider= takes a provider or a list of them; found an empty list.")
        if not callable(self.selection) and self.selection not in ("cheapest", "first"):
            raise ConfigError(
                f"selection= is 'cheapest', 'first', or a function of a provider and its price in USD per hour; found "
                f"{self.selection!r}."
            )

    def on(self, terms: Terms) -> Choice:
        """The same for one pool.

        Raises:
            ConfigError: it asks for something about rented machines, and none of the providers rents any.
        """
        if not any(map(_rents, self.providers)) and (asked := terms.of_rented_machines):
            raise ConfigError(f"{asked}= is for providers of rented machines; none of those given rents any.")
        bound = tuple(provider.on(terms) if _rents(provider) else provider for provider in self.providers)  # type: ignore[attr-defined]
        return replace(self, providers=bound, terms=terms)

    @property
    def name(self) -> str:
        """Names of the providers."""
        return " or ".join(provider.name for provider in self.providers)

    @property
    def can_mount(self) -> bool:
        """Whether nodes of all the providers may mount."""
        return all(getattr(provider, "can_mount", False) for provider in self.providers)

    @property
    def lease_s(self) -> float:
        """The longest of the providers' leases: whichever is chosen has as long."""
        return max(provider.lease_s for provider in self.providers)

    def expect(self, pool: str, image: Image, cluster: Cluster) -> None:
        """Tell the providers that check their hosts for what they will run."""
        self._expected[pool] = (image, cluster)

    def acquire(
        self, pool: str, nodes: int, accelerator: Accelerator | None, at_least: int | None = None
    ) -> Sequence[Host]:
        """The hosts of the first provider that has them all; what those before it had begun is given back.

        Raises:
            ConfigError: a provider cannot have what is asked for.
            ProviderError: none can give the hosts; says why of each.
        """
        reasons: list[str] = []
        expected = self._expected.pop(pool, None)
        for provider in self._ordered(nodes, accelerator, reasons):
            self._chosen[pool] = provider  # from here on `release` ends what it has
            try:
                if expected is not None and (expect := getattr(provider, "expect", None)) is not None:
                    expect(pool, *expected)
                hosts = provider.acquire(pool, nodes, accelerator, at_least)
            except _CANNOT as error:
                provider.release(pool)
                reasons.append(f"{provider.name}: {error}")
                self.terms.report(note(f"{provider.name} cannot give the hosts: {error}"))
                continue
            self._hosts[pool] = list(hosts)
            return hosts
        raise ProviderError(
            f"None of the {len(self.providers)} providers can give the pool its hosts.\n" + "\n".join(reasons)
        )

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:
        """A host of the provider that was chosen; no other takes its place while the pool is open.

        Raises:
            ProviderError: it has none now.
            PoolClosedError: the pool has ended.
        """
        if pool not in self._chosen:
            raise PoolClosedError(f"Pool {pool} has ended; no node of it can be started.")
        host = self._chosen[pool].replace(pool, lost, accelerator)
        self._hosts[pool].append(host)
        return host

    def _ordered(self, nodes: int, accelerator: Accelerator | None, reasons: list[str]) -> list[Provider]:
        """The providers as they are to be tried, without those that have nothing to offer."""
        if self.selection == "first":
            return list(self.providers)
        ranks: list[tuple[float, Provider]] = []
        for provider in self.providers:
            try:
                cost = _hourly(provider, nodes, accelerator)
            except _CANNOT as error:
                reasons.append(f"{provider.name}: {error}")
                continue
            if callable(self.selection):
                ranks.append((self.selection(provider, cost), provider))
            else:
                ranks.append((math.inf if cost is None else cost, provider))
        return [provider for _, provider in sorted(ranks, key=lambda entry: entry[0])]

    def prepare(self, hosts: Sequence[Host], image: Image, cluster: Cluster, report: Report) -> str | None:
        """Compile the image and make it available on the hosts, as the chosen provider does."""
        pool = next(pool for pool, held in self._hosts.items() if hosts[0] in held)
        return self._chosen[pool].prepare(hosts, image, cluster, report)

    def release(self, pool: str) -> None:
        """End everything of the pool: at the chosen provider, or at all of them for a pool of another process.

        Raises:
            SkywardError: a provider could not; raised after all have been asked.
        """
        chosen, failures = self._chosen.pop(pool, None), list[SkywardError]()
        self._hosts.pop(pool, None)
        for provider in self.providers if chosen is None else (chosen,):
            try:
                provider.release(pool)
            except SkywardError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def find(self) -> Iterable[Mapping[str, Any]]:
        """What of skyward's exists at any of the providers."""
        return chain.from_iterable(provider.find() for provider in self.providers)


def _rents(provider: Provider) -> bool:
    return hasattr(provider, "on")


def _hourly(provider: Provider, nodes: int, accelerator: Accelerator | None) -> float | None:
    """What the provider's first offer costs, in USD per hour for all nodes; 0 for one that rents nothing."""
    if not hasattr(provider, "offers"):
        return 0.0
    cost: float | None = provider.offers(nodes, accelerator)[0].cost(nodes)
    return cost
