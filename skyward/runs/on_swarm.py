"""Detached runs with pools of `sky.Swarm`: the driver is a container of the manager's machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from skyward.builder.events import Report
from skyward.builder.sources.declared import ProviderUse
from skyward.delivery.deliver import Delivered, ImageTarget, deliver
from skyward.engine import find_engine
from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.providers.ssh import SSH
from skyward.providers.swarm.provider import Swarm
from skyward.records.run import RunRecord
from skyward.runs.beside import as_container
from skyward.runs.launch import Launch
from skyward.runs.on_host import start_on_hosts

_LOGIN = "DOCKER_AUTH_CONFIG"


def on_manager(
    launch: Launch, source: Path, uses: Sequence[ProviderUse], variables: Mapping[str, str], report: Report
) -> RunRecord:
    """Deliver the images of a program's pools to their registry, and start its driver on the swarm's manager.

    As `on_first_host` does, with uses of sky.Swarm; it is also a ConfigError that the registry wants a login which the
    driver is not given.
    """
    swarm = _swarm(uses)
    registry, manager = swarm.registry, swarm.manager.host
    if registry:
        _check_login(registry, variables)
    if manager is None:
        address = find_engine(swarm.manager.url)
        return as_container(launch, source, address, variables, report, registry=registry)

    def to_registry(image: Image, cluster: Cluster) -> Delivered:
        return deliver(image, cluster, ImageTarget(engine=find_engine(), registry=registry), report)

    machine = SSH(manager.name, key=manager.key, known_hosts=manager.known_hosts)
    return start_on_hosts(launch, source, machine, variables, report, to_registry if registry else None)


def _swarm(uses: Sequence[ProviderUse]) -> Swarm:
    """The one provider of all the pools."""
    found = [Swarm(*use.args, **use.kwargs) for use in uses]
    for use, swarm in zip(uses, found, strict=True):
        if (swarm.manager, swarm.registry) != (found[0].manager, found[0].registry):
            raise ConfigError(f"{use.where}: the pools of a detached run must have the same manager and registry=.")
    return found[0]


def _check_login(registry: str, variables: Mapping[str, str]) -> None:
    from skyward.delivery.registry import engine_login  # brings requests, which most runs do not need

    if _LOGIN not in variables and engine_login(registry):
        raise ConfigError(
            f"The machines of the swarm pull from {registry} with your login, which the driver of a detached run does "
            f"not get by itself. Put a login for it into {_LOGIN} (the text of a docker config.json, best with a token "
            f"that may only pull) and give --env {_LOGIN}."
        )
