"""Detached runs on machines that are reached by SSH: the driver is a container of the first host of its pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

from skyward.builder.events import Report
from skyward.builder.sources.declared import ProviderUse
from skyward.builder.sources.script import pools_in_script
from skyward.delivery.deliver import Delivered, deliver
from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.nodes.ssh_host import Machine
from skyward.providers.base import PoolRequest
from skyward.providers.ssh import SSH, SshAllocation
from skyward.records.run import RunRecord
from skyward.runs.container import container_name
from skyward.runs.images import Deliver, deliver_driver, deliver_images
from skyward.runs.keys import address_of, known_keys
from skyward.runs.launch import Launch
from skyward.runs.pack import pack
from skyward.runs.start_there import Given, start_there

_LEASE_S = 60.0


def on_first_host(
    launch: Launch, source: Path, uses: Sequence[ProviderUse], variables: Mapping[str, str], report: Report
) -> RunRecord:
    """Deliver the images of a program's pools to its hosts, and start its driver on the first of them.

    Args:
        launch: the program.
        source: its file.
        uses: its pools' providers, all of them sky.SSH.
        variables: environment variables that it gets.
        report: receives progress.

    Raises:
        ConfigError: its images, or what it needs, cannot be known before it runs.
        ImageError: an image cannot be had.
        EngineError: an engine refuses.
        ProviderError: a host cannot be used, or the driver ended before the program ran.
    """
    return start_on_hosts(launch, source, _provider(uses), variables, report)


def start_on_hosts(
    launch: Launch,
    source: Path,
    provider: SSH,
    variables: Mapping[str, str],
    report: Report,
    to_pools: Deliver | None = None,
) -> RunRecord:
    """The same with the hosts of a provider, which the driver reaches, its own first.

    `to_pools` delivers an image to where the program's pools run it; None for these hosts.
    """
    images = pools_in_script(source)
    files = pack(launch, source, images)
    addresses = {host.name: address_of(host) for host in provider.hosts}
    known = [line for host in provider.hosts for line in known_keys(host, addresses[host.name])]
    record = replace(launch.record(detached=True), place="docker", container=container_name(launch.id))
    request = PoolRequest(pool_id=token_hex(4), nodes=len(provider.hosts), lease_s=_LEASE_S, report=report)
    allocation = provider.open(request)
    assert isinstance(allocation, SshAllocation)
    with closing(allocation):
        allocation.acquire()
        machines = sorted(allocation.machines, key=lambda machine: provider.hosts.index(machine.host))
        given = Given(
            record=record,
            files=files,
            variables=variables,
            images=deliver_images(images, to_pools or to_machines(allocation, machines, report)),
            driver=deliver_driver(images, to_machines(allocation, machines[:1], report)).tag,
            hosts=addresses,
            known=known,
        )
        start_there(machines, given, report)
    host = provider.hosts[0]
    pointer = replace(record, place=host.name, key=host.key, known_hosts=host.known_hosts)
    pointer.write(launch.folder)
    return pointer


def to_machines(allocation: SshAllocation, machines: Sequence[Machine], report: Report) -> Deliver:
    """What delivers images to machines."""

    def deliver_there(image: Image, cluster: Cluster) -> Delivered:
        return deliver(image, cluster, allocation.target(machines), report)

    return deliver_there


def _provider(uses: Sequence[ProviderUse]) -> SSH:
    """One provider of all the hosts."""
    settings = [dict(use.kwargs) for use in uses]
    for use, given in zip(uses, settings, strict=True):
        if any(given.get(name) != settings[0].get(name) for name in ("key", "known_hosts")):
            raise ConfigError(f"{use.where}: the pools of a detached run must have the same key= and known_hosts=.")
    return SSH(*dict.fromkeys(host for use in uses for host in use.args), **settings[0])
