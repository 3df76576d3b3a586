"""The pools and nodes that commands address: where to look for them, by which names, and which node is meant.

This machine's providers are searched, those that records of this user's runs name, and those of `--at`. Names of kept
pools come from their records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import click

from skyward.errors import ConfigError, EngineMissingError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.model.ssh import SshHost
from skyward.nodes.access import NodeAccess
from skyward.nodes.run_directory import sweep_orphans
from skyward.providers import SSH, Docker, Local, Provider
from skyward.providers.at import FORMS, provider_at
from skyward.records.kept_pool import PoolLock, pool_records
from skyward.records.run import local_runs

_LEFT_S = 3600.0  # leases have ended the nodes of a killed program by then
_RECORDED_S = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """A provider, and its name in lists.

    Attributes:
        pools: those that records of runs have there; None if the user named the place.
    """

    name: str
    provider: Provider
    pools: frozenset[str] | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether only records of runs name it."""
        return self.pools is not None

    def find(self) -> Sequence[Resource]:
        """Return what exists there; nothing if no Docker engine is running, because then nothing can exist.

        Raises:
            SkywardError: it cannot be queried.
        """
        try:
            return list(self.provider.find())
        except EngineMissingError:
            if isinstance(self.provider, Docker):
                return []
            raise


at_option = click.option("--at", "at", multiple=True, metavar="PLACE", help=f"Also there: {FORMS}.")


def place_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the option that names places; the command receives all places to look at as `places`."""

    @at_option
    @wraps(command)
    def with_places(*args: Any, at: tuple[str, ...], **more: Any) -> int:
        places = [Place("docker", Docker()), Place("local", Local())]
        places += [place_at(each) for each in at]
        for each, pools in recorded().items():
            with suppress(ConfigError):  # a key that is not here any more
                place = replace(place_at(each), pools=frozenset(pools))
                if all(place.provider != known.provider for known in places):
                    places.append(place)
        return command(*args, places=places, **more)

    return with_places


def place_at(text: str) -> Place:
    """Return the place that `--at` names.

    Raises:
        ConfigError: it is not a place.
    """
    provider: Any = provider_at(text)
    match provider.name:
        case "ssh":
            name = provider.hosts[0].name
        case "aws" | "gcp":
            name = provider.region or provider.name
        case "slurm":
            name = f"the cluster of {provider.address.name}"
        case "kubernetes":
            name = provider.address.name
        case _:
            name = text
    return Place(name, provider)


def recorded() -> dict[str, set[str]]:
    """Return the places where pools of this user may be, and the pools, by the records of runs on this machine.

    Those of runs that go on, or have ended without having recorded that in the last hour, and of pools that are kept.
    """
    now = time.time()
    kept = {record.pool for _, record in pool_records() if record.until is None or record.until > now}
    found = dict[str, set[str]]()
    for facts in local_runs(ended=True):
        may_be = facts.is_alive or (facts.end is None and now - float(facts.events[-1].get("t", 0.0)) < _LEFT_S)
        for pool, places in facts.places.items():
            for each in places if may_be or pool in kept else ():
                found.setdefault(each, set()).add(pool)
    return found


def ssh_hosts(places: Sequence[Place]) -> list[SshHost]:
    """Return the hosts of the sky.SSH providers that the user named among places."""
    named = (place.provider for place in places if not place.is_recorded)
    return [host for provider in named if isinstance(provider, SSH) for host in provider.hosts]


def ask_all(places: Sequence[Place]) -> Iterator[tuple[Place, Sequence[Resource] | SkywardError]]:
    """Query all places in parallel; yield what exists at each, or the error that prevented the query.

    Places that only records name may be unreachable by now, and are not waited for as long. They may also be others
    by another name or with another key: what was found before is left out.
    """
    answers = [Future[Sequence[Resource]]() for _ in places]

    def ask(place: Place, answer: Future[Sequence[Resource]]) -> None:
        try:
            answer.set_result(place.find())
        except BaseException as error:
            answer.set_exception(error)

    for place, answer in zip(places, answers, strict=True):
        threading.Thread(target=ask, args=(place, answer), name="skyward-ask", daemon=True).start()
    until = time.monotonic() + _RECORDED_S
    seen = set[tuple[str, int, str]]()
    for place, answer in zip(places, answers, strict=True):
        try:
            found = answer.result(max(0.0, until - time.monotonic()) if place.is_recorded else None)
            new = [each for each in found if not place.is_recorded or _identity(each) not in seen]
            seen |= {_identity(each) for each in new}
            yield place, new
        except TimeoutError:
            yield place, ProviderError(f"There was no answer within {_RECORDED_S:g} s.")
        except SkywardError as error:
            yield place, error


def _identity(each: Resource) -> tuple[str, int, str]:
    return each["pool"], each["node"], each["name"]


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """A node, and the place it is at."""

    place: Place
    node: Resource

    @property
    def title(self) -> str:
        """Description of the node for messages."""
        return f"node {self.node['node']} of pool {self.node['pool']} ({self.node['name']})"

    def enter(self) -> NodeAccess:
        """Return a way to run programs in the node.

        Raises:
            SkywardError: it cannot be entered.
        """
        return self.place.provider.enter(self.node)


def find_node(places: Sequence[Place], pool: str, node: str | None = None) -> NodeTarget:
    """Return the wanted running node of a pool.

    Args:
        places: where to look.
        pool: the pool's identifier, a unique prefix of one, or its name; with ":NODE" if wanted.
        node: number or name of the node; None for the pool's only node, else the one with the lowest number.

    Raises:
        ConfigError: the words do not identify a single node.
        ProviderError: there is no such pool or node.
    """
    pool, colon, number = pool.partition(":")
    if colon and node is not None:
        raise ConfigError(f"The node is named twice: {pool}:{number} and {node}.")
    wanted = (number or None) if colon else node
    found, failures = list[NodeTarget](), list[str]()
    for place, answer in ask_all(places):
        if isinstance(answer, SkywardError):
            failures.append(f"{place.name} did not answer: {answer}")
        else:
            found += [NodeTarget(place, each) for each in answer]
    return _choose(_of_pool(found, identifiers([pool])[pool], failures), wanted)


def _of_pool(found: Sequence[NodeTarget], pool: str, failures: Sequence[str]) -> list[NodeTarget]:
    exact = [each for each in found if each.node["pool"] == pool]
    chosen = exact or [each for each in found if pool and str(each.node["pool"]).startswith(pool)]
    pools = sorted({str(each.node["pool"]) for each in chosen})
    if len(pools) > 1:
        raise ConfigError(f"{pool} can mean several pools: {', '.join(pools)}. Name one of them.")
    if not pools:
        advice = "`skyward ps` shows what runs; --at PLACE looks elsewhere."
        raise ProviderError("\n".join([f"There is no pool {pool} here. {advice}", *failures]))
    return chosen


def _choose(found: Sequence[NodeTarget], wanted: str | None) -> NodeTarget:
    running = [each for each in found if each.node["state"] == "running"]
    pool = found[0].node["pool"]
    numbers = sorted({int(each.node["node"]) for each in running if each.node["node"] >= 0})
    if wanted is None and running and not numbers:
        if len(running) == 1:
            return running[0]
        names = ", ".join(each.node["name"] for each in running)
        raise ConfigError(f"Nodes of {pool} have no numbers; name one: {names}.")
    if wanted is None:
        wanted = str(numbers[0]) if numbers else "0"
    # if two places list a node, prefer the one that is not this machine
    for each in reversed(running):
        if wanted in (each.node["name"], str(each.node["node"])):
            return each
    there = f"its nodes are {', '.join(map(str, numbers))}" if numbers else "none of its nodes runs"
    raise ProviderError(f"Pool {pool} has no node {wanted} that runs: {there}.")


def with_names(found: Sequence[Resource]) -> list[Resource]:
    """Return the resources, with names and retention times added for pools that have a name."""
    records = {record.pool: record for _, record in pool_records()}
    named = list[Resource]()
    for each in found:
        if (record := records.get(str(each["pool"]))) is not None:
            each = {**each, "pool_name": record.name}
            if record.until is not None:
                each["until"] = record.until
                each["state"] = time.strftime("kept until %H:%M:%S", time.localtime(record.until))
        named.append(each)
    return named


def identifiers(pools: Iterable[str]) -> dict[str, str]:
    """Return the identifiers of pools, by the identifiers or names that a person uses."""
    names = {record.name: record.pool for _, record in pool_records()}
    return {pool: names.get(pool, pool) for pool in pools}


def forget(pool: str) -> None:
    """Remove the record and directory of an ended pool, unless a client has the pool open and does so itself."""
    for folder, record in list(pool_records()):
        if record.pool == pool:
            lock = PoolLock(folder)
            if lock.acquire(wait=False):
                try:
                    lock.remove()
                finally:
                    lock.release()
            sweep_orphans()
