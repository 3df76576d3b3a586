"""The pools and nodes that commands address: where to look for them, by which names, and which node is meant.

This machine's providers are searched, and those in the options. Names of kept pools come from their records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from skyward import providers
from skyward.cli.runs import key_options
from skyward.errors import ConfigError, EngineMissingError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.model.ssh import SshHost
from skyward.nodes.access import NodeAccess
from skyward.nodes.run_directory import sweep_orphans
from skyward.providers import SSH, Docker, Local, Provider
from skyward.records.kept_pool import KeptPool, PoolLock, pool_records


@dataclass(frozen=True, slots=True)
class Place:
    """A provider, and its name in lists."""

    name: str
    provider: Provider

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


_also = partial(click.option, multiple=True)
ssh_option = _also("--ssh", "hosts", metavar="HOST", help="Also this machine, as sky.SSH() names it.")
_LOGIN_HELP = "Also the Slurm cluster of this login node, as sky.Slurm() names it; - for this machine."
slurm_option = _also("--slurm", "logins", metavar="LOGIN", help=_LOGIN_HELP)
_CONTEXT_HELP = "Also the cluster of this context of the kubeconfig; - for the current one."
_NAMED_HELP = "Also what sky.providers.NAME('ARGUMENT') finds: a provider of an installed package."


def place_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name places; the command receives them as `places`."""

    @ssh_option
    @key_options
    @_also("--aws", "regions", metavar="REGION", help="Also this region of AWS.")
    @_also("--gcp", "google", metavar="REGION", help="Also this region of Google Cloud.")
    @slurm_option
    @_also("--kubernetes", "contexts", metavar="CONTEXT", help=_CONTEXT_HELP)
    @click.option("--namespace", metavar="NAME", help="In clusters of --kubernetes; else that of the context.")
    @_also("--provider", "named", metavar="NAME[:ARGUMENT]", help=_NAMED_HELP)
    @wraps(command)
    def with_places(
        *args: Any,
        hosts: tuple[str, ...],
        key: Path | None,
        known_hosts: Path | None,
        regions: tuple[str, ...],
        google: tuple[str, ...],
        logins: tuple[str, ...],
        contexts: tuple[str, ...],
        namespace: str | None,
        named: tuple[str, ...],
        **more: Any,
    ) -> int:
        remote = [SSH(host, key=key, known_hosts=known_hosts) for host in hosts]
        places = [Place("docker", Docker()), Place("local", Local())]
        places += [Place(provider.hosts[0].name, provider) for provider in remote]
        places += [Place(region, providers.AWS(region)) for region in regions]  # imported on first use
        places += [Place(region, providers.GCP(region)) for region in google]
        for each in logins:
            slurm = providers.Slurm() if each == "-" else providers.Slurm(each, key=key, known_hosts=known_hosts)
            places.append(Place(f"the cluster of {slurm.address.name}", slurm))
        for each in contexts:
            kubernetes = providers.Kubernetes(None if each == "-" else each, namespace=namespace)
            places.append(Place(kubernetes.address.name, kubernetes))
        places += [Place(each, provider_of(each)) for each in named]
        return command(*args, places=places, **more)

    return with_places


def provider_of(text: str) -> Provider:
    """Return the provider named on a command line, with at most one argument.

    Raises:
        ConfigError: there is no such provider, or it takes other arguments.
    """
    name, colon, argument = text.partition(":")
    try:
        provider: Provider = providers.extensions().load(name)(*([argument] if colon else []))
        return provider
    except TypeError as error:
        raise ConfigError(f"--provider {text}: sky.providers.{name} cannot be made of that: {error}.") from error


def ssh_hosts(places: Sequence[Place]) -> list[SshHost]:
    """Return the hosts of the sky.SSH providers among places."""
    return [host for place in places if isinstance(place.provider, SSH) for host in place.provider.hosts]


def ask_all(places: Sequence[Place]) -> Iterator[tuple[Place, Sequence[Resource] | SkywardError]]:
    """Query all places in parallel; yield what exists at each, or the error that prevented the query."""

    def ask(place: Place) -> Sequence[Resource] | SkywardError:
        try:
            return place.find()
        except SkywardError as error:
            return error

    with ThreadPoolExecutor(len(places), thread_name_prefix="skyward-ask") as threads:
        yield from zip(places, threads.map(ask, places), strict=True)


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
            failures.append(f"{place.name} cannot be asked: {answer}")
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
        advice = (
            "`skyward ps` shows what runs; pools elsewhere are found with --ssh, --aws, --gcp, --slurm, "
            "--kubernetes or --provider."
        )
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
    # if two places list a node, prefer the one named by an option
    for each in reversed(running):
        if wanted in (each.node["name"], str(each.node["node"])):
            return each
    there = f"its nodes are {', '.join(map(str, numbers))}" if numbers else "none of its nodes runs"
    raise ProviderError(f"Pool {pool} has no node {wanted} that runs: {there}.")


def with_names(found: Sequence[Resource]) -> list[Resource]:
    """Return the resources, with names and retention times added for pools that have a name."""
    records = {record.pool: record for _, record in pool_records()}
    return [_named(each, records.get(str(each["pool"]))) for each in found]


def _named(each: Resource, record: KeptPool | None) -> Resource:
    if record is None:
        return each
    named: Resource = {**each, "pool_name": record.name}
    if record.until is not None:
        named["until"] = record.until
        named["state"] = time.strftime("kept until %H:%M:%S", time.localtime(record.until))
    return named


def identifiers(pools: Iterable[str]) -> dict[str, str]:
    """Return the identifiers of pools, by the identifiers or names that a person uses."""
    names = {record.name: record.pool for _, record in pool_records()}
    return {pool: names.get(pool, pool) for pool in pools}


def names_of_pools() -> list[str]:
    """Return the names of this user's pools that have one."""
    return [record.name for _, record in pool_records()]


def kept_at(pool: str) -> str:
    """Return the provider that still keeps a named pool, according to its record; "" if none does."""
    now = time.time()
    return next((r.provider for _, r in pool_records() if r.pool == pool and (r.until is None or r.until > now)), "")


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
