"""The providers in which `skyward ps` and `skyward down` look for pools: this machine's, and those of the options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from skyward import providers
from skyward.cli.runs import key_options
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


ssh_option = click.option(
    "--ssh", "hosts", multiple=True, metavar="HOST", help="Also this machine, as sky.SSH() names it."
)
slurm_option = click.option(
    "--slurm",
    "logins",
    multiple=True,
    metavar="LOGIN",
    help="Also the Slurm cluster of this login node, as sky.Slurm() names it; - for this machine.",
)


def place_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that name places; the command gets them as `places`."""

    @ssh_option
    @key_options
    @click.option("--aws", "regions", multiple=True, metavar="REGION", help="Also this region of AWS.")
    @click.option("--gcp", "google", multiple=True, metavar="REGION", help="Also this region of Google Cloud.")
    @click.option(
        "--swarm",
        "managers",
        multiple=True,
        metavar="ENGINE",
        help="Also the swarm of this manager, as sky.Swarm() names it: ssh://user@host or unix:///path.",
    )
    @slurm_option
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
        places += [Place(region, providers.AWS(region)) for region in regions]  # each is imported where it is named
        places += [Place(region, providers.GCP(region)) for region in google]
        for each in managers:
            files = (key, known_hosts) if each.startswith("ssh://") else (None, None)
            swarm = providers.Swarm(each, key=files[0], known_hosts=files[1])
            places.append(Place(f"the swarm of {swarm.manager.name}", swarm))
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
