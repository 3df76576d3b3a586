"""Detached runs on rented machines: they are rented for the run, and its driver is a container of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from skyward._pool import config
from skyward.builder.events import Report, note
from skyward.builder.sources.declared import Declared
from skyward.builder.sources.pools import DeclaredPool
from skyward.builder.sources.script import pools_in_script
from skyward.errors import ConfigError
from skyward.model.image_fields import platform_of
from skyward.model.spec import Accelerator, Nodes
from skyward.model.ssh import SshHost
from skyward.nodes.ssh_host import Machine
from skyward.providers import extensions
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.keys import PoolKeys
from skyward.providers.cloud.provider import CloudProvider
from skyward.providers.ssh import SshNodeHost
from skyward.records.run import Rental, RunRecord
from skyward.runs.container import container_name
from skyward.runs.driver import Launch
from skyward.runs.on_host import Given, start_there
from skyward.runs.pack import compiled_for, deliver_driver, deliver_images, pack

KEEP_S = 3600.0


def on_rented_machines(
    launch: Launch,
    source: Path,
    pools: Sequence[DeclaredPool],
    variables: Mapping[str, str],
    keep_s: float | None,
    report: Report,
) -> RunRecord:
    """Rent the machines of a program's pools, and start its driver on the first of them.

    Args:
        launch: the program.
        source: its file.
        pools: its pools on rented machines, all with the same provider.
        variables: environment variables that it gets.
        keep_s: how long the driver's machine stays after the run's end if nobody fetches the results; None for an hour.
        report: receives progress.

    Raises:
        ConfigError: what it needs cannot be known before it runs, or its pools ask for different machines.
        ImageError: an image cannot be had.
        EngineError: an engine refuses.
        ProviderError: machines cannot be had, or the driver ended before the program ran; they are given back.
    """
    images = pools_in_script(source)
    files = pack(launch, source, images)
    provider, request = _provider(pools), _request(pools, images, report)
    provider.check(request)
    region = provider.cloud().region
    rented = Rental(
        provider=f"{type(provider).__name__}:{region}",
        pool=request.pool_id,
        keep_s=KEEP_S if keep_s is None else keep_s,
    )
    record = launch.record(detached=True)
    record = replace(record, place="docker", container=container_name(launch.id), rented=rented)
    with closing(provider.rent(request)) as allocation:
        machines = [host.machine for host in allocation.acquire() if isinstance(host, SshNodeHost)]
        reach = allocation.on_machines
        delivered = deliver_images(images, reach.target(machines), report)
        driver = deliver_driver(images, reach.target(machines[:1]), report)
        launch.folder.mkdir(mode=0o700, parents=True)
        keys = allocation.copy_keys(launch.folder)
        given = Given(
            record=record,
            files=files,
            variables=variables,
            images=delivered,
            driver=driver,
            hosts={machine.address: SshHost(host=machine.address, user=machine.host.user) for machine in machines},
            known=_known_inside(keys, machines),
        )
        start_there(machines, given, report)
        host = machines[0].host
        pointer = replace(record, place=host.name, key=str(keys.login_key), known_hosts=str(keys.known_hosts))
        pointer.write(launch.folder)
        report(note(_cost(allocation.hourly_cost, len(machines), rented)))
        allocation.hand_over()
    return pointer


def end_rented(rented: Rental) -> None:
    """End the machines that were rented for a run.

    Raises:
        ProviderError: the cloud cannot be reached, or machines do not end; names them.
        ConfigError: the cloud's package or credentials are missing here.
    """
    name, _, region = rented.provider.partition(":")
    extensions().load(name)(region).destroy(rented.pool)


def _provider(pools: Sequence[DeclaredPool]) -> CloudProvider:
    uses = [use for pool in pools for use in pool.providers]
    for use in uses:
        if (use.name, use.args, use.kwargs) != (uses[0].name, uses[0].args, uses[0].kwargs):
            raise ConfigError(
                f"{use.where}: the pools of a detached run share their rented machines, and this one is on another "
                f"sky.{use.name}(...) than that at {uses[0].where}. Run them as two programs."
            )
    provider = extensions().load(uses[0].name)(*uses[0].args, **uses[0].kwargs)
    assert isinstance(provider, CloudProvider)
    return provider


def _request(pools: Sequence[DeclaredPool], images: Sequence[Declared], report: Report) -> PoolRequest:
    """What is rented: as many machines as the largest pool has, of the one kind that all ask for."""
    first, nodes = pools[0], 0
    for pool in pools:
        if unknown := pool.unknown_machines():
            raise ConfigError(
                f"{pool.where}: {unknown}= of this pool is known only when the program runs, and its machines are "
                "rented before: write it with constants."
            )
        if (name := _other(first.machines, pool.machines)) is not None:
            raise ConfigError(
                f"{pool.where}: the pools of a detached run share their rented machines, and {name}= differs from that "
                f"of the pool at {first.where}. Run them as two programs."
            )
        nodes = max(nodes, Nodes.of(pool.machines.get("nodes", 1)).desired)
    given = first.machines
    image, _ = compiled_for(images[0])
    return PoolRequest(
        pool_id=token_hex(4),
        nodes=nodes,
        accelerator=Accelerator.of(given.get("accelerator")),
        image=image,
        cpus=config.positive("cpu", config.either("cpu", given.get("cpu"), "vcpus", given.get("vcpus"))),
        memory_gb=config.memory_of(given.get("memory"), given.get("memory_gb")),
        platform=image.platform or platform_of(given.get("architecture")),
        lease_s=CloudProvider.capabilities.default_lease_s,
        machine=given.get("machine"),
        allocation=given.get("allocation"),
        max_hourly_cost=config.positive("max_hourly_cost", given.get("max_hourly_cost")),
        budget=config.positive("budget", given.get("budget")),
        report=report,
    )


def _other(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """A parameter besides the number of nodes that differs."""
    return next((n for n in {**first, **second} if n != "nodes" and first.get(n) != second.get(n)), None)


def _known_inside(keys: PoolKeys, machines: Sequence[Machine]) -> list[str]:
    """The host keys of machines, at the addresses where they reach each other."""
    known = dict(line.split(" ", 1) for line in keys.known_hosts.read_text().splitlines())
    return [f"{machine.address} {known[machine.host.host]}" for machine in machines]


def _cost(hourly: float, machines: int, rented: Rental) -> str:
    price = f" for about {hourly:.3f} USD per hour" if hourly else ""
    return (
        f"{machines} rented machine{'s' * (machines > 1)} run{'s' * (machines == 1)}{price} until the run has ended; "
        f"the first stays until its results are fetched, at most {rented.keep_s / 60:.0f} min longer"
    )
