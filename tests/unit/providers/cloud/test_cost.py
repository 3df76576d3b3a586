"""What machines cost: the order in which offers are tried, what is reported, and the budget and its end."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from skyward.errors import BudgetSpentError, ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud import cost
from skyward.providers.cloud.base import MachineOffer, MachineType, Market
from skyward.providers.cloud.cost import Costs, affordable, find_offers
from tests.waiting import wait_until

TYPE = MachineType(name="m6i.large", cpus=2, memory_gb=8, platform="linux/amd64")
OFFER = MachineOffer(type=TYPE, market="spot", zone="us-east-1a", hourly=0.1)


def test_each_machine_is_counted_from_its_launch_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a replacement of another price."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counted = Costs("p", None, lambda event: said.append(str(event)), said.append)

    counted.start(OFFER, ["i-1", "i-2"])
    now[0] = 1800.0
    counted.stop("i-1")
    now[0] = 2000.0
    counted.stop("i-1")  # another try to replace it
    now[0] = 1800.0
    other = replace(TYPE, name="m6a.large")
    counted.start(replace(OFFER, type=other, hourly=0.4), ["i-3"])
    now[0] = 3600.0
    counted.report_total()

    unpriced = Costs("p", None, lambda event: said.append(str(event)), said.append)
    unpriced.report_total()  # of nothing
    unpriced.start(replace(OFFER, hourly=None), ["i-4"])
    unpriced.report_total()
    assert said == ["1 x m6i.large, 1 x m6a.large for 60.0 min, about 0.350 USD", "1 x m6i.large for 0.0 min"]


DOLLAR = replace(OFFER, hourly=1.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the meter, which does not pass by itself."""
    clock = [100.0]
    frozen: Any = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr(cost, "time", frozen)
    return clock


def test_what_is_left_depends_on_what_runs(now: list[float]) -> None:
    """Machines that are added shorten the time, those that end lengthen it; what was spent stays spent."""
    costs = Costs("p", 4.0, lambda _: None, lambda _: None)
    assert costs.left_s(2.0) == 7200
    assert costs.left_s() == math.inf
    costs.start(DOLLAR, ["a", "b"])
    now[0] += 3600
    assert (costs.left_s(), costs.left_s(2.0)) == (3600, 1800)
    costs.stop("a")
    assert costs.left_s() == 7200
    costs.check()
    now[0] += 7200
    assert costs.left_s() == 0
    with pytest.raises(BudgetSpentError, match=r"Pool p has spent its budget of 4 USD after .* larger budget="):
        costs.check()


def test_it_warns_at_four_fifths_and_ends_once(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_LOOK_S", 0.02)
    said, ended = list[str](), list[str]()
    costs = Costs("p", 1.0, lambda event: said.append(str(event)), ended.append)
    costs.start(DOLLAR, ["a"])
    costs.watch()
    now[0] += 3000
    wait_until(lambda: said)
    now[0] += 600
    wait_until(lambda: ended)
    assert said == ["pool p has spent 83% of its budget of 1 USD; its machines will be ended in about 10 min"]
    (text,) = ended
    assert text.startswith("Pool p has spent its budget of 1 USD after 60 min")


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
        ("on-demand", PLAIN + UNPRICED),
        ("spot", SPOT),
        ("always-spot", SPOT),
    ],
)
def test_offers_are_tried_in_the_order_of_the_allocation(allocation: str | None, expected: list[MachineOffer]) -> None:
    """The cheapest first within a market, those of unknown price last, the others as the cloud has them."""
    given: list[Any] = UNPRICED + PLAIN + SPOT[::-1]
    cloud: Any = SimpleNamespace(offers=lambda _, markets: [each for each in given if each.market in markets])
    assert find_offers(cloud, PoolRequest(pool_id="p1", allocation=allocation)) == expected


def test_no_offer_at_all_is_not_an_unknown_price() -> None:
    """A region may have no such machine on the market that was asked for."""
    cloud: Any = SimpleNamespace(region="us-east-1", offers=lambda *_: [])
    with pytest.raises(ProviderError, match=r"No machine in us-east-1 fits the pool \(spot\)"):
        find_offers(cloud, PoolRequest(pool_id="p1", allocation="spot", budget=5.0))


def test_a_limit_is_for_all_machines_together() -> None:
    """What is dearer, or of unknown price, is not tried; if all is, the cheapest is named."""
    offers = [offer(SMALL, "spot", "a", 0.4), offer(LARGE, "spot", "a", 1.1), *UNPRICED]

    assert affordable(offers, 2, 0.8, None) == offers[:1]
    assert affordable(offers, 2, None, 5.0) == offers[:2]
    assert affordable(offers, 2, None, None) == offers
    with pytest.raises(ProviderError, match=r"nothing was launched\. The cheapest is 3 x small \(spot\) in a for 1\.2"):
        affordable(offers, 3, 1.19, None)
    for limits in ((100.0, None), (None, 5.0)):
        with pytest.raises(ProviderError, match=r"need prices.* Nothing was launched"):
            affordable(UNPRICED, 1, *limits)
