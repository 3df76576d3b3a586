"""Several providers for one pool, tried in an order; the first that can provide all its hosts is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from skyward.builder.events import note
from skyward.errors import ConfigError, EngineError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.node import Host
from skyward.providers.base import Allocation, Capabilities, Offer, PoolRequest, Provider

# a function of a provider and its price for the whole pool (USD per hour, None if unknown) that returns a number: the
# provider with the lowest is tried first
Rank: TypeAlias = "Callable[[Provider, float | None], float]"
Selection: TypeAlias = 'Literal["cheapest", "first"] | Rank'
_UNAVAILABLE = (ProviderError, EngineError)  # raised if a provider has no hosts available; another one may have


@dataclass(frozen=True)
class Fallback(Provider):
    """Providers, and the order in which they are tried: `ComputePool(provider=[...], selection=...)`.

    All hosts of a pool are from one provider. One that does not rent machines has the price 0.

    Attributes:
        providers: at least one.
        selection: "cheapest" (of equals the one listed first), "first" for the order of the list, or a function of a
            provider and its price in USD per hour that returns its rank, the lowest first.

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
        """The names of the providers."""
        return " or ".join(provider.name for provider in self.providers)

    @property
    def capabilities(self) -> Capabilities:
        """The common capabilities of the providers, with the longest of their leases."""
        each = [provider.capabilities for provider in self.providers]
        return Capabilities(
            mounts=all(one.mounts for one in each),
            rents=any(one.rents for one in each),
            default_lease_s=max(one.default_lease_s for one in each),
        )

    def check(self, request: PoolRequest) -> None:
        """Let each provider check its request."""
        if not self.capabilities.rents and (asked := request.rental_parameter):
            raise ConfigError(f"{asked}= is for providers of rented machines; none of those given rents any.")
        if request.name is not None:
            raise ConfigError("name= and keep= take one provider: the next client is to find the pool where it was.")
        for provider in self.providers:
            provider.check(_request_for(provider, request))

    def offers(self, request: PoolRequest) -> Sequence[Offer]:
        """Return the offers of the providers, in the order in which they are tried."""
        ordered, reasons = self.ordered(request)
        if not ordered:
            raise self.refusal(reasons)
        return [offer for provider in ordered for offer in provider.offers(_request_for(provider, request))]

    def open(self, request: PoolRequest) -> Allocation:
        """Return an allocation that will use one of the providers."""
        return _FallbackAllocation(self, request)

    def ordered(self, request: PoolRequest) -> tuple[list[Provider], list[str]]:
        """Return the providers in the order to be tried, and the reasons of those that are left out: without offers."""
        if self.selection == "first":
            return list(self.providers), []
        ranks, reasons = list[tuple[float, Provider]](), list[str]()
        for provider in self.providers:
            try:
                cost = provider.offers(_request_for(provider, request))[0].hourly_cost
            except _UNAVAILABLE as error:
                reasons.append(f"{provider.name}: {error}")
                continue
            known = math.inf if cost is None else cost
            ranks.append((self.selection(provider, cost) if callable(self.selection) else known, provider))
        return [provider for _, provider in sorted(ranks, key=lambda entry: entry[0])], reasons

    def refusal(self, reasons: Sequence[str]) -> ProviderError:
        """Return the error for a pool that none of the providers can serve."""
        text = f"None of the {len(self.providers)} providers can give the pool its hosts.\n"
        return ProviderError(text + "\n".join(reasons))

    def find(self) -> Sequence[Resource]:
        """Return skyward's resources at all providers."""
        return [found for provider in self.providers for found in provider.find()]

    def destroy(self, pool_id: str) -> None:
        """Remove all resources of a pool at all providers."""
        failures = list[SkywardError]()
        for provider in self.providers:
            try:
                provider.destroy(pool_id)
            except SkywardError as error:
                failures.append(error)
        if failures:
            raise failures[0]


class _FallbackAllocation(Allocation):
    """The allocation of the chosen provider, which does not change while the pool is open."""

    def __init__(self, fallback: Fallback, request: PoolRequest) -> None:
        super().__init__(request)
        self._fallback = fallback
        self._chosen: Allocation | None = None

    def acquire(self) -> Sequence[Host]:
        """Return the hosts of the first provider that has them all; resources of those before it are removed."""
        ordered, reasons = self._fallback.ordered(self.request)
        for provider in ordered:
            self._chosen = chosen = provider.open(_request_for(provider, self.request))
            try:
                return chosen.acquire()
            except _UNAVAILABLE as error:
                chosen.close()
                reasons.append(f"{provider.name}: {error}")
                self.request.report(note(f"{provider.name} cannot give the hosts: {error}"))
        raise self._fallback.refusal(reasons)

    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Prepare the hosts through the chosen provider."""
        assert self._chosen
        return self._chosen.prepare(hosts)

    def replace(self, lost: Host | None) -> Host:
        """Return a host of the chosen provider."""
        self.check_open()
        assert self._chosen
        return self._chosen.replace(lost)

    def release(self) -> None:
        """Close the allocation of the chosen provider."""
        if self._chosen is not None:
            self._chosen.close()


def _request_for(provider: Provider, request: PoolRequest) -> PoolRequest:
    """Return the request for a provider: without terms of rented machines unless it rents."""
    if provider.capabilities.rents:
        return request
    return replace(request, machine=None, allocation=None, max_hourly_cost=None, budget=None)
