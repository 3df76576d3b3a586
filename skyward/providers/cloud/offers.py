"""The offers of a cloud for a pool: on which machine types, in which order they are tried, and within its budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from skyward.errors import ConfigError, ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.protocol import Cloud, MachineOffer, MachineType, Market

AllocationStrategy = Literal["spot-if-available", "spot", "always-spot", "on-demand", "cheapest"]
_MARKETS: dict[AllocationStrategy, tuple[Market, ...]] = {
    "spot-if-available": ("spot", "on-demand"),
    "spot": ("spot",),
    "always-spot": ("spot",),
    "on-demand": ("on-demand",),
    "cheapest": ("spot", "on-demand"),
}
_ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "arm64"}
_MAX_TYPES = 6  # that are priced and tried; the next ones are several times as large
_CPU_WEIGHT, _GB_WEIGHT = 8.0, 1.0  # a processor costs about as much as 8 GiB: the order before prices are known
_MIN_CPUS, _MIN_GB = 2, 4.0


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


def suitable(listed: Sequence[MachineType], request: PoolRequest, region: str) -> list[MachineType]:
    """The types that are large enough for a pool's nodes, about the cheapest first; at most six.

    Without `cpus` and `memory_gb` a machine has at least 2 processors and 4 GiB. A type named by `machine` is taken
    whatever its size.

    Args:
        listed: the types of that name, or of the families that come into question.
        request: the pool.
        region: the cloud's region in sentences.

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
    # a machine with fewer GPUs to spare comes before one with cheaper processors
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
