"""`skyward offers`: what a pool would rent, in the order in which it would try it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from skyward.cli.main import main
from skyward.errors import ProviderError
from skyward.providers.aws.provider import Ec2
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import MachineOffer, MachineType, Market

SMALL = MachineType(name="g5.xlarge", cpus=4, memory_gb=16, platform="linux/amd64", gpus=1)
OFFERS = [
    MachineOffer(type=SMALL, market="on-demand", zone="us-east-1a", hourly=1.006),
    MachineOffer(type=SMALL, market="spot", zone="us-east-1b", hourly=0.41),
    MachineOffer(type=replace(SMALL, name="g5.2xlarge"), market="spot", zone="us-east-1a", hourly=0.5),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PoolRequest]:
    """What a region of AWS with three offers is asked."""
    requests: list[PoolRequest] = []

    def offers(_: Any, request: PoolRequest, markets: Sequence[Market]) -> list[MachineOffer]:
        requests.append(request)
        if request.accelerator is None:
            raise ProviderError("us-east-1 has no such machine.")
        return [each for each in OFFERS if each.market in markets]

    monkeypatch.setattr(Ec2, "offers", offers)
    return requests


def test_offers_are_shown_in_the_order_of_a_pool(asked: list[PoolRequest], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offers", "--accelerator", "A10G", "--nodes", "4", "--at", "aws://us-east-1"]) == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["PROVIDER", "MACHINES", "MARKET", "ZONE", "USD/HOUR", "USD/DAY"]
    assert rows[1] == ["aws://us-east-1", "4", "x", "g5.xlarge", "spot", "us-east-1b", "1.640", "39.36"]
    assert [row[3] for row in rows[1:]] == ["g5.xlarge", "g5.2xlarge", "g5.xlarge"]
    (request,) = asked
    assert request.accelerator is not None
    assert (request.nodes, request.accelerator.name) == (4, "A10G")


def test_programs_get_lines_of_json(asked: list[PoolRequest], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["offers", "--accelerator", "A10G", "--nodes", "2", "--at", "aws://us-east-1", "--json"]
    assert main([*words, "--allocation", "on-demand", "--budget", "5.03"]) == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "event": "offer",
        "provider": "aws://us-east-1",
        "text": "2 x g5.xlarge (on-demand) in us-east-1a for 2.012 USD per hour",
        "nodes": 2,
        "machine": "g5.xlarge",
        "market": "on-demand",
        "zone": "us-east-1a",
        "hourly_cost": 2.012,
        "hours": 2.5,
    }
    assert asked[0].budget == 5.03


@pytest.mark.parametrize(
    ("words", "status", "rows"),
    [
        (["--max-hourly-cost", "0.45", "--budget", "1"], 0, ["0.410 9.84 2.4 h"]),
        (["--max-hourly-cost", "0.1"], 6, []),
        (["--allocation", "free"], 2, []),
        (["--at", "Local", "--budget", "3"], 2, []),
        (["--at", "nowhere"], 2, []),
    ],
)
def test_the_limits_of_a_pool_hold(
    words: list[str], status: int, rows: list[str], asked: list[PoolRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget is for providers of rented machines."""
    assert asked == []
    assert main(["offers", "--accelerator", "A10G", "--at", "aws://us-east-1", *words]) == status
    assert [" ".join(line.split()[6:]) for line in capsys.readouterr().out.splitlines()[1:]] == rows
