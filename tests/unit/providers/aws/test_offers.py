"""What a pool can have at EC2: types by accelerator or size, prices, markets, the order of tries, the budget."""

from __future__ import annotations

import logging

import pytest

from skyward.errors import ConfigError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.providers.aws.api import Api, RefusedError
from skyward.providers.aws.offers import allocation_of, find_offers, within
from skyward.providers.aws.terms import MachineType, Offer
from skyward.providers.aws.types import find_types
from tests.unit.providers.aws.conftest import Prices

AMD, ARM = "linux/amd64", "linux/arm64"
SMALL = MachineType(name="small", cpus=2, memory_gb=4, platform=AMD)
LARGE = MachineType(name="large", cpus=4, memory_gb=8, platform=AMD)
ZONES = ["a", "b"]
MARKET = Prices(
    on_demand={"small": 1.0, "large": 2.0},
    spot={("small", "a"): 0.5, ("small", "b"): 0.4, ("large", "a"): 1.1, ("large", "b"): 1.2},
    offered={"small": ("a", "b", "far"), "large": ("a", "b")},
)


def types(api: Api, accelerator: str | None, platform: str = AMD, **asked: float | str) -> list[MachineType]:
    wanted = {"machine": None, "cpus": None, "memory_gb": None, **asked}
    return find_types(api, platform, accelerator=Accelerator.of(accelerator), **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("accelerator", "first", "gpus"),
    [
        ("T4", "g4dn.xlarge", 1),
        ("T4:4", "g4dn.12xlarge", 4),
        ("L4", "g6.xlarge", 1),
        ("A10G", "g5.xlarge", 1),
        ("A10G:8", "g5.48xlarge", 8),
        ("L40S", "g6e.xlarge", 1),
        ("V100:8", "p3dn.24xlarge", 8),
        ("A100:8", "p4d.24xlarge", 8),
        ("A100", "p4d.24xlarge", 8),  # there is no smaller one
        ("A100-80GB:8", "p4de.24xlarge", 8),
        ("H100:8", "p5.48xlarge", 8),
        ("H100", "p5.4xlarge", 1),
    ],
)
def test_accelerators_have_instance_types(account: Api, accelerator: str, first: str, gpus: int) -> None:
    """By their common names, with as few GPUs to spare as there can be."""
    found = types(account, accelerator)

    assert (found[0].name, found[0].gpus) == (first, gpus)
    assert all(each.gpus >= Accelerator.of(accelerator).count for each in found)  # type: ignore[union-attr]


def test_an_arm_gpu_needs_an_arm_image(account: Api) -> None:
    """The same accelerator for the other architecture is refused with what there is."""
    assert types(account, "T4G", ARM)[0].name == "g5g.xlarge"
    with pytest.raises(ProviderError, match=r"no instance type with T4G:1 for x86_64; found g5g.* arm64"):
        types(account, "T4G", AMD)


def test_plain_machines_are_large_enough_and_not_much_larger(account: Api) -> None:
    """By processors and memory; what nobody asks for is small."""
    found = types(account, None, cpus=8, memory_gb=30)

    assert len(found) == 6
    assert all(each.cpus >= 8 and each.memory_gb >= 30 and not each.gpus for each in found)
    assert max(each.cpus for each in found) == 8
    assert {each.platform for each in types(account, None, ARM)} == {ARM}
    assert max(each.cpus for each in types(account, None)) == 2


def test_a_named_type_is_taken_as_it_is(account: Api) -> None:
    """Whatever its size; a name that does not exist is refused."""
    assert [each.name for each in types(account, None, machine="m6i.large", cpus=2)] == ["m6i.large"]
    with pytest.raises(ProviderError, match=r"with the name m6i\.tiny for x86_64; found none of that name"):
        types(account, None, machine="m6i.tiny")


def test_an_unknown_accelerator_is_the_callers_mistake(account: Api) -> None:
    """The message says which there are."""
    with pytest.raises(ConfigError, match=r"'MI300X'; it knows A100, .*machine="):
        types(account, "MI300X")


def order(allocation: str | None) -> list[tuple[str, str, str, float | None]]:
    offers = find_offers(MARKET, [SMALL, LARGE], ZONES, allocation_of(allocation))
    return [(each.market, each.type.name, each.zone, each.hourly) for each in offers]


SPOT = [("spot", "small", "b", 0.4), ("spot", "small", "a", 0.5)]
SPOT += [("spot", "large", "a", 1.1), ("spot", "large", "b", 1.2)]
PLAIN = [("on-demand", "small", "a", 1.0), ("on-demand", "small", "b", 1.0)]
BIG = [("on-demand", "large", "a", 2.0), ("on-demand", "large", "b", 2.0)]


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        (None, SPOT + PLAIN + BIG),
        ("spot-if-available", SPOT + PLAIN + BIG),
        ("spot", SPOT),
        ("always-spot", SPOT),
        ("on-demand", PLAIN + BIG),
        ("cheapest", SPOT[:2] + PLAIN + SPOT[2:] + BIG),
    ],
)
def test_offers_are_tried_in_the_order_of_the_allocation(
    allocation: str | None, expected: list[tuple[str, str, str, float]]
) -> None:
    """Cheapest first within a market; zones without a subnet of ours do not count."""
    assert order(allocation) == expected


def test_an_unknown_allocation_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(ConfigError, match=r"one of 'spot-if-available', .* found 'free'"):
        allocation_of("free")


def test_a_region_without_the_type_is_told() -> None:
    """Before anything is launched."""
    with pytest.raises(ProviderError, match=r"No availability zone of us-east-1 .* offers small"):
        find_offers(Prices({}, {}, {"small": ("far",)}), [SMALL], ZONES, "on-demand")


def test_a_type_without_a_spot_price_is_not_tried_there() -> None:
    """AWS does not sell all types on the spot market."""
    offers = find_offers(Prices({"small": 1.0}, {}, {"small": ("a",)}), [SMALL], ZONES, "spot-if-available")

    assert [each.market for each in offers] == ["on-demand"]


def test_prices_that_may_not_be_asked_leave_offers_without(caplog: pytest.LogCaptureFixture) -> None:
    """A warning says why; the pool can still be had, unless it has a budget."""

    class Mute(Prices):
        def call(self, service: str, action: str, **arguments: object):  # type: ignore[no-untyped-def]
            if service == "pricing":
                raise RefusedError("AWS was asked to get products and refused: AccessDenied.", "AccessDenied")
            return super().call(service, action, **arguments)

    with caplog.at_level(logging.WARNING):
        offers = find_offers(Mute({}, {}, {"small": ("a",)}), [SMALL], ZONES, "on-demand")

    assert [each.hourly for each in offers] == [None]
    assert "refused: AccessDenied" in caplog.text
    assert "at a price that AWS does not tell" in offers[0].text(1)
    with pytest.raises(ProviderError, match="The cheapest is not known"):
        within(offers, 1, 100.0)


def test_a_budget_is_for_all_machines_together() -> None:
    """What is dearer is not tried; if all is, the cheapest is named."""
    offers = [Offer(type=each, market="spot", zone="a", hourly=price) for each, price in ((SMALL, 0.4), (LARGE, 1.1))]

    assert [each.type for each in within(offers, 2, 0.8)] == [SMALL]
    assert within(offers, 2, None) == offers
    with pytest.raises(ProviderError, match=r"nothing was launched\. The cheapest is 3 x small \(spot\) in a for 1\.2"):
        within(offers, 3, 1.19)
