"""The cost of a pool's machines, as it is reported."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from skyward.builder.events import Event
from skyward.providers.cloud import cost
from skyward.providers.cloud.base import MachineOffer, MachineType

TYPE = MachineType(name="m6i.large", cpus=2, memory_gb=8, platform="linux/amd64")
OFFER = MachineOffer(type=TYPE, market="spot", zone="us-east-1a", hourly=0.1)


def test_the_cost_is_reported_every_hour_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time; an unknown price is left out."""
    monkeypatch.setattr(cost, "_REPORT_EVERY_S", 0.01)
    said, twice = list[str](), threading.Event()

    def report(event: Event) -> None:
        said.append(str(event))
        if len(said) == 2:
            twice.set()

    running = cost.CostMeter(report)
    running.start(OFFER, ["i-1", "i-2", "i-3"])
    assert twice.wait(60)
    running.end()
    assert re.fullmatch(r"3 x m6i\.large for \d\.\d min so far, about 0\.\d{3} USD", said[0])
    assert any(re.fullmatch(r"3 x m6i\.large for \d\.\d min, about 0\.\d{3} USD", each) for each in said)

    unpriced = cost.CostMeter(report)
    unpriced.start(replace(OFFER, hourly=None), ["i-4"])
    unpriced.end()
    assert any(re.fullmatch(r"1 x m6i\.large for \d\.\d min", each) for each in said)


def test_each_machine_is_counted_from_its_launch_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a replacement of another price."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counted = cost.CostMeter(lambda event: said.append(str(event)))

    counted.start(OFFER, ["i-1", "i-2"])
    now[0] = 1800.0
    counted.stop("i-1")
    now[0] = 2000.0
    counted.stop("i-1")  # another try to replace it
    now[0] = 1800.0
    other = replace(TYPE, name="m6a.large")
    counted.start(replace(OFFER, type=other, hourly=0.4), ["i-3"])
    now[0] = 3600.0
    counted.end()

    assert said == ["1 x m6i.large, 1 x m6a.large for 60.0 min, about 0.350 USD"]
