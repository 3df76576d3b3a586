"""The order in which a cloud's offers are tried, and the budget that they must keep to."""

from __future__ import annotations

from typing import Any

import pytest

from skyward.errors import ConfigError, ProviderError
from skyward.providers.cloud.base import MachineOffer, MachineType, Market
from skyward.providers.cloud.cost import in_order, strategy_of, within_budget

SMALL = MachineType(name="small", cpus=2, memory_gb=4, platform="linux/amd64")
LARGE = MachineType(name="large", cpus=4, memory_gb=8, platform="linux/amd64")


def offer(of: MachineType, market: Market, zone: str, hourly: float | None) -> MachineOffer:
    return MachineOffer(type=of, market=market, zone=zone, hourly=hourly)


SPOT = [offer(SMALL, "spot", "b", 0.4), offer(SMALL, "spot", "a", 0.5)]
SPOT += [offer(LARGE, "spot", "a", 1.1), offer(LARGE, "spot", "b", 1.2)]
PLAIN = [offer(SMALL, "on-demand", "a", 1.0), offer(SMALL, "on-demand", "b", 1.0)]
UNPRICED = [offer(LARGE, "on-demand", "a", None)]


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        (None, SPOT + PLAIN + UNPRICED),
        ("spot-if-available", SPOT + PLAIN + UNPRICED),
        ("cheapest", SPOT[:2] + PLAIN + SPOT[2:] + UNPRICED),
    ],
)
def test_offers_are_tried_in_the_order_of_the_allocation(allocation: str | None, expected: list[MachineOffer]) -> None:
    """The cheapest first within a market, those of unknown price last, the others as the cloud has them."""
    given: list[Any] = UNPRICED + PLAIN + SPOT[::-1]
    assert in_order(given, strategy_of(allocation)) == expected


def test_an_unknown_allocation_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(ConfigError, match=r"one of 'spot-if-available', .* found 'free'"):
        strategy_of("free")


def test_a_budget_is_for_all_machines_together() -> None:
    """What is dearer is not tried; if all is, the cheapest is named."""
    offers = [offer(SMALL, "spot", "a", 0.4), offer(LARGE, "spot", "a", 1.1)]

    assert [each.type for each in within_budget(offers, 2, 0.8)] == [SMALL]
    assert within_budget(offers, 2, None) == offers
    with pytest.raises(ProviderError, match=r"nothing was launched\. The cheapest is 3 x small \(spot\) in a for 1\.2"):
        within_budget(offers, 3, 1.19)
    with pytest.raises(ProviderError, match="The cheapest is not known"):
        within_budget(UNPRICED, 1, 100.0)
