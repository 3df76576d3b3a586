"""Several providers for one pool: they are tried in an order, and the first that can give all its hosts does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from skyward.builder.events import note
from skyward.errors import ConfigError, EngineError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.access import NodeAccess
from skyward.nodes.node import Host
from skyward.providers.base import Allocation, Capabilities, Offer, PoolRequest, Provider

# a function gets a provider and its price for the whole pool (USD per hour, None where it is not known), and gives a
# number: the provider with the lowest is tried first
Rank: TypeAlias = "Callable[[Provider, float | None], float]"
Selection: TypeAlias = 'Literal["cheapest", "first"] | Rank'
_UNAVAILABLE = (ProviderError, EngineError)  # these say that a provider cannot give hosts now; another one may


@dataclass(frozen=True)
class Fallback(Provider):
    """Providers, and the order in which they are tried: what `ComputePool(provider=[...], selection=...)` means.

    A pool has all its hosts of one provider. One that rents nothing costs nothing.

    Attributes:
        providers: at least one.
        selection: "cheapest" (of equals the one listed first), "first" for the order of the list, or a function of a
            provider and its price in USD per hour that gives its rank, the lowest first.

    Raises:
        ConfigError: there is no provider, or no such selection.
    """

    providers: tuple[Provider, ...]
    selection: Selection = "cheapest"

    def __post_init__(self) -> None:
        if not self.providers:
            raise ConfigError("provider= takes a provider or a list of them; found an empty list.")
        if not callable(self.selection) and self.selection not in ("cheapest", "first"):
            raise ConfigError(
                f"selection= is 'cheapest', 'first', or a function of a provider and its price in USD per hour; found "
                f"{self.selection!r}."
            )

    @property
    def name(self) -> str:
        """Names of the providers."""
        return " or ".join(provider.name for provider in self.providers)

    @property
    def capabilities(self) -> Capabilities:
        """What all of them can do; whichever is chosen has the longest of their leases."""
        each = [provider.capabilities for provider in self.providers]
        return Capabilities(
            mounts=all(one.mounts for one in each),
            rents=any(one.rents for one in each),
            default_lease_s=max(one.default_lease_s for one in each),
        )

    def check(self, request: PoolRequest) -> None:
        """Have each provider check what it would be asked.

        Raises:
            ConfigError: one refuses; or the request is about rented machines, and none of the providers rents any.
        """
        if not self.capabilities.rents and (asked := request.rental_parameter):
            raise ConfigError(f"{asked}= is for providers of rented machines; none of those given rents any.")
        if request.name is not None:
            raise ConfigError("name= and keep= take one provider: the next client is to find the pool where it was.")
        for provider in self.providers:
            provider.check(_request_for(provider, request))

    def offers(self, request: PoolRequest) -> Sequence[Offer]:
        """What the providers offer, in the order in which they are tried.

        Raises:
            ProviderError: none offers anything.
        """
        reasons: list[str] = []
        ordered = self.ordered(request, reasons)
        if not ordered:
            raise ProviderError(self.refusal(reasons))
        return [offer for provider in ordered for offer in provider.offers(_request_for(provider, request))]

    def open(self, request: PoolRequest) -> Allocation:
        """An allocation that will be one of the providers'."""
        return _FallbackAllocation(self, request)

    def ordered(self, request: PoolRequest, reasons: list[str]) -> list[Provider]:
        """The providers as they are to be tried, without those that have nothing to offer, whose reasons are added."""
        if self.selection == "first":
            return list(self.providers)
        ranks: list[tuple[float, Provider]] = []
        for provider in self.providers:
            try:
                cost = provider.offers(_request_for(provider, request))[0].hourly_cost
            except _UNAVAILABLE as error:
                reasons.append(f"{provider.name}: {error}")
                continue
            if callable(self.selection):
                ranks.append((self.selection(provider, cost), provider))
            else:
                ranks.append((math.inf if cost is None else cost, provider))
        return [provider for _, provider in sorted(ranks, key=lambda entry: entry[0])]

    def refusal(self, reasons: Sequence[str]) -> str:
        """The message of a pool that none of the providers can serve."""
        return f"None of the {len(self.providers)} providers can give the pool its hosts.\n" + "\n".join(reasons)

    def find(self) -> Sequence[Resource]:
        """What of skyward's exists at any of the providers."""
        return [found for provider in self.providers for found in provider.find()]

    def enter(self, node: Resource) -> NodeAccess:
        """A way into a node of one of the providers.

        Raises:
            ProviderError: none of them has it.
        """
        for provider in self.providers:
            if any((each["pool"], each["name"]) == (node["pool"], node["name"]) for each in provider.find()):
                return provider.enter(node)
        raise ProviderError(f"None of the {len(self.providers)} providers has {node['name']}.")

    def destroy(self, pool_id: str) -> None:
        """Remove everything of a pool at all of the providers.

        Raises:
            SkywardError: a provider could not; raised after all have been asked.
        """
        failures = list[SkywardError]()
        for provider in self.providers:
            try:
                provider.destroy(pool_id)
            except SkywardError as error:
                failures.append(error)
        if failures:
            raise failures[0]


class _FallbackAllocation(Allocation):
    """The allocation of the provider that was chosen; no other takes its place while the pool is open."""

    def __init__(self, fallback: Fallback, request: PoolRequest) -> None:
        super().__init__(request)
        self._fallback = fallback
        self._chosen: Allocation | None = None

    def acquire(self) -> Sequence[Host]:
        """The hosts of the first provider that has them all; what those before it had begun is given back.

        Raises:
            ProviderError: none can give the hosts; says why of each.
        """
        reasons: list[str] = []
        for provider in self._fallback.ordered(self.request, reasons):
            self._chosen = chosen = provider.open(_request_for(provider, self.request))
            try:
                return chosen.acquire()
            except _UNAVAILABLE as error:
                chosen.close()
                reasons.append(f"{provider.name}: {error}")
                self.request.report(note(f"{provider.name} cannot give the hosts: {error}"))
        raise ProviderError(self._fallback.refusal(reasons))

    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """As the chosen provider does."""
        assert self._chosen
        return self._chosen.prepare(hosts)

    def replace(self, lost: Host | None) -> Host:
        """A host of the chosen provider.

        Raises:
            ProviderError: it has none now.
            PoolClosedError: the pool has ended.
        """
        self.check_open()
        assert self._chosen
        return self._chosen.replace(lost)

    def release(self) -> None:
        """End what the chosen provider has."""
        if self._chosen is not None:
            self._chosen.close()


def _request_for(provider: Provider, request: PoolRequest) -> PoolRequest:
    """What a provider is asked: terms of rented machines are for those that rent."""
    if provider.capabilities.rents:
        return request
    return replace(request, machine=None, allocation=None, max_hourly_cost=None, budget=None)
