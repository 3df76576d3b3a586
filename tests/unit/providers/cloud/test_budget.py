"""A pool's budget: what is left of it, the warning, the end."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import skyward as sky
from skyward.errors import BudgetSpentError, ConfigError, PoolClosedError, ProviderError
from skyward.providers.cloud import cost
from skyward.providers.cloud import cost as budgets
from skyward.providers.cloud.base import MachineOffer, MachineType
from skyward.providers.cloud.cost import GUARD_LATER_S, Budget, CostMeter, priced

TYPE = MachineType(name="m6i.large", cpus=2, memory_gb=8, platform="linux/amd64")
OFFER = MachineOffer(type=TYPE, market="spot", zone="us-east-1a", hourly=1.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the meter, which does not pass by itself."""
    clock = [100.0]
    frozen: Any = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr(cost, "time", frozen)
    return clock


def test_what_is_left_depends_on_what_runs(now: list[float]) -> None:
    """Machines that are added shorten the time, those that end lengthen it; what was spent stays spent."""
    meter = CostMeter(lambda _: None)
    budget = Budget(4.0, "p", meter, lambda _: None, lambda _: None)
    assert budget.left_s(OFFER, 2) == 7200
    assert budget.guard_s(OFFER, 2) == 7200 + GUARD_LATER_S
    assert budget.left_s() > 1e7
    meter.start(OFFER, ["a", "b"])
    now[0] += 3600
    assert budget.left_s() == 3600
    assert budget.left_s(OFFER, 2) == 1800
    meter.stop("a")
    assert budget.left_s() == 7200
    budget.check()
    now[0] += 7200
    assert budget.left_s() == 0
    with pytest.raises(BudgetSpentError, match=r"Pool p has spent its budget of 4 USD after .* larger budget="):
        budget.check()


def test_it_warns_at_four_fifths_and_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_LOOK_S", 0.02)
    said, ended = list[str](), list[str]()
    done = threading.Event()

    def spent(text: str) -> None:
        ended.append(text)
        done.set()

    meter = CostMeter(lambda _: None)
    budget = Budget(1.5 / 3600, "p", meter, lambda event: said.append(str(event)), spent)
    meter.start(OFFER, ["a"])
    budget.begin()

    assert done.wait(60)
    time.sleep(0.2)
    meter.end()
    assert len(ended) == 1
    assert len(said) == 1
    assert "of its budget of 0.000416667 USD; its machines will be ended in about 0 s" in said[0]
    assert ended[0].startswith("Pool p has spent its budget of 0.000416667 USD after")


def test_a_pool_that_ends_before_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[str]()
    meter = CostMeter(lambda _: None)
    budget = Budget(0.5 / 3600, "p", meter, lambda _: None, ended.append)
    meter.start(OFFER, ["a"])
    budget.begin()
    budget.end()
    time.sleep(1.0)
    meter.end()
    assert ended == []


def test_only_known_prices_can_be_kept_within_a_budget() -> None:
    unknown = replace(OFFER, hourly=None)
    assert priced([unknown, OFFER]) == [OFFER]
    assert priced([]) == []
    with pytest.raises(ProviderError, match=r"budget= needs prices.* Nothing was launched"):
        priced([unknown])


@pytest.mark.parametrize("budget", [0, -1, "5"])
def test_a_budget_is_a_number_above_zero(budget: Any) -> None:
    with pytest.raises(ConfigError, match="budget= takes a number above 0"):
        sky.ComputePool(sky.AWS("us-east-1"), budget=budget)


def test_what_rents_nothing_has_no_budget() -> None:
    with pytest.raises(ConfigError, match=r"budget= is for providers of rented machines; sky.Local rents none"):
        sky.ComputePool(sky.Local(), budget=5.0)
    assert issubclass(BudgetSpentError, PoolClosedError)
