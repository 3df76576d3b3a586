"""The providers in which `skyward ps` and `skyward down` look for pools: this machine's, and those of the options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from skyward.errors import ConfigError, EngineMissingError, SkywardError
from skyward.model.resource import Resource
from skyward.providers import SSH, Docker, Local, Provider


@dataclass(frozen=True, slots=True)
class Place:
    """A provider, and its name in lists."""

    name: str
    provider: Provider

    def find(self) -> Sequence[Resource]:
        """What exists there; nothing where no Docker engine runs, because then nothing can.

        Raises:
            SkywardError: it cannot be asked.
        """
        try:
            return list(self.provider.find())
        except EngineMissingError:
            if isinstance(self.provider, Docker):
                return []
            raise


def place_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that name places; the command gets them as `places`."""

    @click.option("--ssh", "hosts", multiple=True, metavar="HOST", help="Also this machine, as sky.SSH() names it.")
    @click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Private key for SSH.")
    @click.option(
        "--known-hosts",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The only host keys to trust for SSH.",
    )
    @click.option("--aws", "regions", multiple=True, metavar="REGION", help="Also this region of AWS.")
    @click.option("--gcp", "google", multiple=True, metavar="REGION", help="Also this region of Google Cloud.")
    @click.option(
        "--swarm",
        "managers",
        multiple=True,
        metavar="ENGINE",
        help="Also the swarm of this manager, as sky.Swarm() names it: ssh://user@host or unix:///path.",
    )
    @click.option(
        "--slurm",
        "logins",
        multiple=True,
        metavar="LOGIN",
        help="Also the Slurm cluster of this login node, as sky.Slurm() names it; - for this machine.",
    )
    @click.option(
        "--kubernetes",
        "contexts",
        multiple=True,
        metavar="CONTEXT",
        help="Also the cluster of this context of the kubeconfig; - for the current one.",
    )
    @click.option("--namespace", metavar="NAME", help="In clusters of --kubernetes; else that of the context.")
    @click.option(
        "--provider",
        "named",
        multiple=True,
        metavar="NAME[:ARGUMENT]",
        help="Also what sky.providers.NAME('ARGUMENT') finds: a provider of an installed package.",
    )
    @wraps(command)
    def with_places(
        *args: Any,
        hosts: tuple[str, ...],
        key: Path | None,
        known_hosts: Path | None,
        regions: tuple[str, ...],
        google: tuple[str, ...],
        managers: tuple[str, ...],
        logins: tuple[str, ...],
        contexts: tuple[str, ...],
        namespace: str | None,
        named: tuple[str, ...],
        **more: Any,
    ) -> int:
        remote = [SSH(host, key=key, known_hosts=known_hosts) for host in hosts]
        places = [Place("docker", Docker()), Place("local", Local())]
        places += [Place(provider.hosts[0].name, provider) for provider in remote]
        if regions:
            from skyward.providers import AWS

            places += [Place(region, AWS(region)) for region in regions]
        if google:
            from skyward.providers import GCP

            places += [Place(region, GCP(region)) for region in google]
        if managers:
            from skyward.providers import Swarm

            swarms = [
                Swarm(each, key=key, known_hosts=known_hosts) if each.startswith("ssh://") else Swarm(each)
                for each in managers
            ]
            places += [Place(f"the swarm of {swarm.manager.name}", swarm) for swarm in swarms]
        if logins:
            from skyward.providers import Slurm

            clusters = [Slurm() if each == "-" else Slurm(each, key=key, known_hosts=known_hosts) for each in logins]
            places += [Place(f"the cluster of {each.address.name}", each) for each in clusters]
        if contexts:
            from skyward.providers import Kubernetes

            found = [Kubernetes(None if each == "-" else each, namespace=namespace) for each in contexts]
            places += [Place(each.address.name, each) for each in found]
        places += [Place(each, provider_of(each)) for each in named]
        return command(*args, places=places, **more)

    return with_places


def provider_of(text: str) -> Provider:
    """The provider that is named on a command line, with at most one argument.

    Raises:
        ConfigError: there is no such provider, or it takes other arguments.
    """
    from skyward.providers.registry import load

    name, colon, argument = text.partition(":")
    try:
        return load(name)(*([argument] if colon else []))
    except TypeError as error:
        raise ConfigError(f"--provider {text}: sky.providers.{name} cannot be made of that: {error}.") from error


def ask_all(places: Sequence[Place]) -> Iterator[tuple[Place, Sequence[Resource] | SkywardError]]:
    """What exists at each place, or the error that says why it is not known. All are asked in parallel."""

    def ask(place: Place) -> Sequence[Resource] | SkywardError:
        try:
            return place.find()
        except SkywardError as error:
            return error

    with ThreadPoolExecutor(len(places), thread_name_prefix="skyward-ask") as threads:
        yield from zip(places, threads.map(ask, places), strict=True)
