"""Several providers for one pool: which is tried first, and what becomes of those that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.model.resource import Resource
from skyward.nodes.node import Host
from skyward.providers import Fallback
from skyward.providers.base import Allocation, Capabilities, Offer, PoolRequest, Provider


@dataclass(frozen=True)
class Renting(Provider):
    """A provider of rented machines that never has any; `said` is what it was asked."""

    called: str
    hourly: float | None = 1.0
    sold_out: bool = False
    said: list[str] = field(default_factory=list, compare=False)
    requests: list[PoolRequest] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return self.called

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(rents=True, default_lease_s=300.0)

    def check(self, request: PoolRequest) -> None:
        self.requests.append(request)

    def offers(self, request: PoolRequest) -> list[Offer]:
        if self.sold_out:
            raise ProviderError("nothing is on sale.")
        return [Offer(text="", hourly_cost=None if self.hourly is None else self.hourly * request.nodes)]

    def open(self, request: PoolRequest) -> Allocation:
        return _Nothing(self, request)

    def destroy(self, pool_id: str) -> None:  # noqa: ARG002
        self.said.append("destroy")

    def find(self) -> Sequence[Resource]:
        return [Resource(pool="p", node=0, name=self.name, state="running", user="")]


class _Nothing(Allocation):
    """An allocation for which there is no host."""

    def __init__(self, provider: Renting, request: PoolRequest) -> None:
        super().__init__(request)
        self._said = provider.said

    def acquire(self) -> Sequence[Host]:
        self._said.append("acquire")
        raise ProviderError("there is no capacity.")

    def replace(self, lost: Host | None) -> Host:  # noqa: ARG002
        raise AssertionError("it has no hosts to replace")

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002
        raise AssertionError("it has no hosts to prepare")

    def release(self) -> None:
        self._said.append("release")


@sky.compute
def double(x: int) -> int:
    return 2 * x


def test_one_that_cannot_is_followed_by_the_next() -> None:
    """A pool opens with the second provider of the list; the first has given back what it had begun."""
    full = Renting("full")
    pool = sky.ComputePool([full, sky.Local()], selection="first", nodes=2, display="quiet")
    with pool:
        assert double(2) @ pool == [4, 4]
        assert full.said == ["acquire", "release"]
        assert pool.id in {about["pool"] for about in sky.Local().find()}
    assert pool.id not in {about["pool"] for about in sky.Local().find()}


def test_the_cheapest_comes_first() -> None:
    """What rents nothing costs nothing; a price that is not known comes last, what has no offer is not tried."""
    dear, cheap, unknown = Renting("dear", 9.0), Renting("cheap", 2.0), Renting("unknown", None)
    fallback = Fallback((dear, unknown, Renting("sold out", sold_out=True), cheap))
    with pytest.raises(ProviderError, match="None of the 4 providers") as caught:
        fallback.open(PoolRequest(pool_id="p", nodes=2)).acquire()
    words = str(caught.value)
    order = [words.index(name) for name in ("sold out: nothing", "cheap: there", "dear: there", "unknown: there")]
    assert order == sorted(order)
    with sky.ComputePool([dear, sky.Local()], display="quiet"):
        assert dear.said == ["acquire", "release"]  # of the first half: the pool began with what costs nothing


def test_a_function_ranks() -> None:
    """It gets each provider with its price for all nodes."""
    seen = {}

    def dearest(provider: Any, cost: float | None) -> float:
        seen[provider.name] = cost
        return -(cost or 0.0)

    with pytest.raises(ProviderError) as caught:
        fallback = Fallback((Renting("a", 1.0), Renting("b", 3.0)), dearest)
        fallback.open(PoolRequest(pool_id="p", nodes=4)).acquire()
    assert seen == {"a": 4.0, "b": 12.0}
    assert str(caught.value).index("b: there") < str(caught.value).index("a: there")


def test_terms_are_for_those_that_rent() -> None:
    """They reach these and leave the others alone; where nobody rents they are refused."""
    renting = Renting("a")
    sky.ComputePool([sky.Local(), sky.Docker(), renting], machine="m1", max_hourly_cost=5)
    (request,) = renting.requests
    assert (request.machine, request.max_hourly_cost, request.lease_s) == ("m1", 5, 300.0)
    with pytest.raises(ConfigError, match="max_hourly_cost= is for providers of rented machines"):
        sky.ComputePool([sky.Local(), sky.Docker()], max_hourly_cost=1.0)


def test_all_are_asked_for_a_pool_of_another_process() -> None:
    """Nobody here knows which provider it has, so each removes what it finds of it."""
    one, other = Renting("one"), Renting("other")
    fallback = Fallback((one, other))
    fallback.destroy("stranger")
    assert one.said == other.said == ["destroy"]
    assert [about["name"] for about in fallback.find()] == ["one", "other"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"provider": []}, "an empty list"),
        ({"provider": [sky.Local(), "aws"]}, "found 'aws'"),
        ({"provider": [sky.Local()], "selection": "best"}, "selection= is 'cheapest', 'first'"),
        ({"provider": sky.Local(), "selection": "first"}, "give provider= a list"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    """Before anything is created."""
    with pytest.raises(ConfigError, match=words):
        sky.ComputePool(**given)
