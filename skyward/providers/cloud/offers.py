"""The offers of a cloud for a pool, in the order in which they are tried, within its budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from skyward.errors import ConfigError, ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.protocol import Cloud, MachineOffer, Market

AllocationStrategy = Literal["spot-if-available", "spot", "always-spot", "on-demand", "cheapest"]
_MARKETS: dict[AllocationStrategy, tuple[Market, ...]] = {
    "spot-if-available": ("spot", "on-demand"),
    "spot": ("spot",),
    "always-spot": ("spot",),
    "on-demand": ("on-demand",),
    "cheapest": ("spot", "on-demand"),
}


def strategy_of(allocation: object) -> AllocationStrategy:
    """The value of `allocation=`; "spot-if-available" when it is None.

    Raises:
        ConfigError: there is no such strategy.
    """
    for known in get_args(AllocationStrategy):
        if allocation == known or (allocation is None and known == "spot-if-available"):
            return known  # type: ignore[no-any-return]
    choices = ", ".join(map(repr, get_args(AllocationStrategy)))
    raise ConfigError(f"allocation must be one of {choices}; found {allocation!r}.")


def find_offers(cloud: Cloud, request: PoolRequest) -> list[MachineOffer]:
    """The offers for a pool, the one to try first at the front.

    Raises:
        ConfigError: the cloud has no such accelerator, or there is no such allocation.
        ProviderError: there is no offer, or none within the budget.
    """
    strategy = strategy_of(request.allocation)
    found = cloud.offers(request, _MARKETS[strategy])
    if request.budget is not None:
        found = priced(found)
    return within_budget(in_order(found, strategy), request.nodes, request.max_hourly_cost)


def priced(offers: Sequence[MachineOffer]) -> list[MachineOffer]:
    """The offers whose price is known, without which no budget can be kept.

    Raises:
        ProviderError: there is none.
    """
    found = [offer for offer in offers if offer.hourly is not None]
    if offers and not found:
        raise ProviderError(
            "budget= needs prices, and of none of the machines that have what is asked for the price is known. Nothing "
            "was launched. Leave budget= out, or ask for other machines."
        )
    return found


def in_order(offers: Sequence[MachineOffer], strategy: AllocationStrategy) -> list[MachineOffer]:
    """The offers by market and price; those of one price stay in the cloud's order."""
    rank = {market: 0 if strategy == "cheapest" else number for number, market in enumerate(_MARKETS[strategy])}
    return sorted(offers, key=lambda each: (rank[each.market], math.inf if each.hourly is None else each.hourly))


def within_budget(offers: Sequence[MachineOffer], nodes: int, max_hourly_cost: float | None) -> list[MachineOffer]:
    """The offers whose machines cost at most this much together, in USD per hour.

    Raises:
        ProviderError: there is none; names the cheapest.
    """
    if max_hourly_cost is None:
        return list(offers)
    affordable = [offer for offer in offers if (cost := offer.cost(nodes)) is not None and cost <= max_hourly_cost]
    if not affordable:
        priced = [offer for offer in offers if offer.hourly is not None]
        cheapest = min(priced, key=lambda offer: offer.hourly or 0.0).text(nodes) if priced else "not known"
        raise ProviderError(
            f"No offer is within max_hourly_cost={max_hourly_cost:g} USD for {nodes} machines together, and nothing "
            f"was launched. The cheapest is {cheapest}."
        )
    return affordable
