"""What a pool can have, in the order in which it is tried: types, markets and zones, within the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from skyward.errors import ConfigError, ProviderError
from skyward.providers.aws import prices
from skyward.providers.aws.api import Api
from skyward.providers.aws.terms import MachineType, Market, Offer

Allocation = Literal["spot-if-available", "spot", "always-spot", "on-demand", "cheapest"]
_MARKETS: dict[str, tuple[Market, ...]] = {
    "spot-if-available": ("spot", "on-demand"),
    "spot": ("spot",),
    "always-spot": ("spot",),
    "on-demand": ("on-demand",),
    "cheapest": ("spot", "on-demand"),
}


def allocation_of(value: object) -> Allocation:
    """The caller's word for which market to use; "spot-if-available" when there is none.

    Raises:
        ConfigError: it is no such word.
    """
    for known in get_args(Allocation):
        if value == known or (value is None and known == "spot-if-available"):
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"allocation must be one of {', '.join(map(repr, get_args(Allocation)))}; found {value!r}.")


def find_offers(api: Api, types: Sequence[MachineType], zones: Sequence[str], allocation: Allocation) -> list[Offer]:
    """All ways to get machines of one of the types, the one to try first first.

    Raises:
        ProviderError: no zone has any of the types.
    """
    names = [each.name for each in types]
    markets = _MARKETS[allocation]
    offered = [{"Name": "instance-type", "Values": names}]
    there = api.all(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings",
        LocationType="availability-zone", Filters=offered,
    )  # fmt: skip
    places = [(found["InstanceType"], found["Location"]) for found in there if found["Location"] in zones]
    if not places:
        raise ProviderError(
            f"No availability zone of {api.region} that has a default subnet offers {', '.join(names)}. Name another "
            "region or type."
        )
    by_name = {each.name: each for each in types}
    on_demand = prices.on_demand(api, names) if "on-demand" in markets else {}
    spot = prices.spot(api, names) if "spot" in markets else {}
    offers = [
        Offer(
            type=by_name[name],
            market=market,
            zone=zone,
            hourly=spot.get((name, zone)) if market == "spot" else on_demand.get(name),
        )
        for market in markets
        for name, zone in places
        if market == "on-demand" or (name, zone) in spot  # a type without a price is not sold on the spot market
    ]
    rank = {market: 0 if allocation == "cheapest" else number for number, market in enumerate(markets)}
    order = {name: number for number, name in enumerate(names)}
    return sorted(
        offers,
        key=lambda each: (
            rank[each.market],
            math.inf if each.hourly is None else each.hourly,
            order[each.type.name],
            each.zone,
        ),
    )


def within(offers: Sequence[Offer], nodes: int, max_hourly_cost: float | None) -> list[Offer]:
    """The offers that cost no more than a limit for all machines together, in USD per hour.

    Raises:
        ProviderError: none does; names the cheapest.
    """
    if max_hourly_cost is None:
        return list(offers)
    kept = [offer for offer in offers if (cost := offer.cost(nodes)) is not None and cost <= max_hourly_cost]
    if not kept:
        priced = [offer for offer in offers if offer.hourly is not None]
        cheapest = min(priced, key=lambda offer: offer.hourly or 0.0).text(nodes) if priced else "not known"
        raise ProviderError(
            f"No offer is within max_hourly_cost={max_hourly_cost:g} USD for {nodes} machines together, and nothing "
            f"was launched. The cheapest is {cheapest}."
        )
    return kept
