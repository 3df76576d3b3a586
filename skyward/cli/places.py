"""Where pools can be found again: this machine, and what the command line names. There is no record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from skyward.errors import EngineMissingError, SkywardError
from skyward.providers import SSH, Docker, Local, Provider


@dataclass(frozen=True, slots=True)
class Place:
    """One provider, and what it is called in a list."""

    name: str
    provider: Provider

    def find(self) -> Sequence[Mapping[str, Any]]:
        """What of skyward's is there; nothing where no engine runs, because then nothing can.

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
    """The options that say where to look; the command gets them as `places`."""

    @click.option("--ssh", "hosts", multiple=True, metavar="HOST", help="Also this machine, as sky.SSH() names it.")
    @click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Private key for SSH.")
    @click.option(
        "--known-hosts",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The only host keys to trust for SSH.",
    )
    @click.option("--aws", "regions", multiple=True, metavar="REGION", help="Also this region of AWS.")
    @click.option(
        "--swarm",
        "managers",
        multiple=True,
        metavar="ENGINE",
        help="Also the swarm of this manager, as sky.Swarm() names it: ssh://user@host or unix:///path.",
    )
    @wraps(command)
    def with_places(
        *args: Any,
        hosts: tuple[str, ...],
        key: Path | None,
        known_hosts: Path | None,
        regions: tuple[str, ...],
        managers: tuple[str, ...],
        **more: Any,
    ) -> int:
        remote = [SSH(host, key=key, known_hosts=known_hosts) for host in hosts]
        places = [Place("docker", Docker()), Place("local", Local())]
        places += [Place(provider.hosts[0].name, provider) for provider in remote]
        if regions:
            from skyward.providers import AWS

            places += [Place(region, AWS(region)) for region in regions]
        if managers:
            from skyward.providers import Swarm

            swarms = [
                Swarm(each, key=key, known_hosts=known_hosts) if each.startswith("ssh://") else Swarm(each)
                for each in managers
            ]
            places += [Place(f"the swarm of {swarm.manager.name}", swarm) for swarm in swarms]
        return command(*args, places=places, **more)

    return with_places


def ask_all(places: Sequence[Place]) -> Iterator[tuple[Place, Sequence[Mapping[str, Any]] | SkywardError]]:
    """What is at each place, or why it cannot be said. All are asked side by side."""

    def ask(place: Place) -> Sequence[Mapping[str, Any]] | SkywardError:
        try:
            return place.find()
        except SkywardError as error:
            return error

    with ThreadPoolExecutor(len(places), thread_name_prefix="skyward-ask") as threads:
        yield from zip(places, threads.map(ask, places), strict=True)
