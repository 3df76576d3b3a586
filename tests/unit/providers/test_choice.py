"""Several providers for one pool: which is tried first, and what becomes of those that cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.providers import Choice
from skyward.providers.base import Host, Terms


@dataclass(frozen=True)
class Priced:
    """What a machine costs, as an offer says it."""

    hourly: float | None

    def cost(self, nodes: int) -> float | None:
        return None if self.hourly is None else self.hourly * nodes


@dataclass(frozen=True)
class Renting:
    """A provider of rented machines that never has any; `said` is what it was asked."""

    name: str
    hourly: float | None = 1.0
    sold_out: bool = False
    lease_s: float = 300.0
    terms: Terms | None = None
    said: list[str] = field(default_factory=list, compare=False)

    def on(self, terms: Terms) -> Renting:
        return replace(self, terms=terms)

    def offers(self, *_: object) -> list[Priced]:
        if self.sold_out:
            raise ProviderError("nothing is on sale.")
        return [Priced(self.hourly)]

    def acquire(self, *_: object) -> Sequence[Host]:
        self.said.append("acquire")
        raise ProviderError("there is no capacity.")

    def replace(self, *_: object) -> Host:
        raise AssertionError("it has no hosts to replace")

    def prepare(self, *_: object) -> str | None:
        raise AssertionError("it has no hosts to prepare")

    def release(self, *_: object) -> None:
        self.said.append("release")

    def find(self) -> Iterable[Mapping[str, Any]]:
        return [{"name": self.name}]


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
    choice = Choice((dear, unknown, Renting("sold out", sold_out=True), cheap))
    with pytest.raises(ProviderError, match="None of the 4 providers") as caught:
        choice.acquire("p", 2, None)
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
        Choice((Renting("a", 1.0), Renting("b", 3.0)), dearest).acquire("p", 4, None)
    assert seen == {"a": 4.0, "b": 12.0}
    assert str(caught.value).index("b: there") < str(caught.value).index("a: there")


def test_terms_are_for_those_that_rent() -> None:
    """They reach these and leave the others alone; where nobody rents they are refused."""
    choice = Choice((sky.Local(), Renting("a"))).on(Terms(machine="m1"))
    assert choice.providers[0] == sky.Local()
    assert isinstance(choice.providers[1], Renting)
    assert choice.providers[1].terms == Terms(machine="m1")
    assert choice.lease_s == 300.0
    with pytest.raises(ConfigError, match="max_hourly_cost= is for providers of rented machines"):
        sky.ComputePool([sky.Local(), sky.Docker()], max_hourly_cost=1.0)


def test_all_are_asked_for_a_pool_of_another_process() -> None:
    """Nobody here knows which provider it has, so each removes what it finds of it."""
    one, other = Renting("one"), Renting("other")
    choice = Choice((one, other))
    choice.release("stranger")
    assert one.said == other.said == ["release"]
    assert [about["name"] for about in choice.find()] == ["one", "other"]


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
