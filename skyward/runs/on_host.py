"""Detached runs on machines that are reached by SSH: the driver is a container of the first host of its pools.

With pools of `sky.Swarm` that host is the manager's machine.
"""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from skyward.builder.events import Report, note
from skyward.builder.sources.declared import ProviderUse
from skyward.builder.sources.script import pools_in_script
from skyward.delivery.deliver import ImageTarget
from skyward.delivery.prepared import Prepared
from skyward.engine import find_engine
from skyward.errors import ConfigError, SkywardError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.nodes.ssh_host import Machine
from skyward.providers.base import PoolRequest
from skyward.providers.ssh import SSH, SshAllocation
from skyward.records.run import RunRecord
from skyward.runs.container import as_container, container_name, driver_container, start_driver, write_run
from skyward.runs.driver import Launch
from skyward.runs.keys import add_key, address_of, known_keys, line_of, make_key, remove_key, run_script
from skyward.runs.pack import Pack, deliver_driver, deliver_images, pack
from skyward.ssh.handed import KNOWN_HOSTS_FILE, write_handed

if TYPE_CHECKING:
    from skyward.providers.swarm.provider import Swarm

_LEASE_S = 60.0
# What the host is asked before: the addresses that it may be seen with, and the group that may use its engine.
_LOOK = r"""
echo "$(hostname -I 2>/dev/null || true)"
stat -c %g "$1"
"""
_PLACE = r"""
umask 077
runs=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs
mkdir -p "$runs" && mkdir "$runs/$1" && tar -xf - -C "$runs/$1" && cd "$runs/$1" && pwd -P
"""
_DROP = r"""
rm -rf "${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs/$1"
"""
_LOGIN = "DOCKER_AUTH_CONFIG"


def on_first_host(
    launch: Launch,
    source: Path,
    provider: SSH,
    variables: Mapping[str, str],
    report: Report,
    to_pools: ImageTarget | None = None,
) -> RunRecord:
    """Deliver the images of a program's pools to their hosts, and start its driver on the first of them.

    Args:
        launch: the program.
        source: its file.
        provider: of the hosts that the driver reaches, its own first.
        variables: environment variables that it gets.
        report: receives progress.
        to_pools: where the program's pools run their images; None for these hosts.

    Raises:
        ConfigError: its images, or what it needs, cannot be known before it runs.
        ImageError: an image cannot be had.
        EngineError: an engine refuses.
        ProviderError: a host cannot be used, or the driver ended before the program ran.
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
            images=deliver_images(images, to_pools or allocation.target(machines), report),
            driver=deliver_driver(images, allocation.target(machines[:1]), report),
            hosts=addresses,
            known=known,
        )
        start_there(machines, given, report)
    host = provider.hosts[0]
    pointer = replace(record, place=host.name, key=host.key, known_hosts=host.known_hosts)
    pointer.write(launch.folder)
    return pointer


def one_provider(uses: Sequence[ProviderUse]) -> SSH:
    """One provider of all the hosts of uses of sky.SSH.

    Raises:
        ConfigError: they have different keys.
    """
    settings = [dict(use.kwargs) for use in uses]
    for use, given in zip(uses, settings, strict=True):
        if any(given.get(name) != settings[0].get(name) for name in ("key", "known_hosts")):
            raise ConfigError(f"{use.where}: the pools of a detached run must have the same key= and known_hosts=.")
    return SSH(*dict.fromkeys(host for use in uses for host in use.args), **settings[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a driver gets.

    Attributes:
        record: of the run, as the driver's host has it.
        files: the program.
        variables: environment variables of the program; they may be secrets.
        images: those that were delivered to its hosts, by their descriptions.
        driver: tag of the driver's image.
        hosts: where its hosts reach each other, by the names that the program has for them; the driver's first.
        known: lines of a known_hosts file for these.
    """

    record: RunRecord
    files: Pack
    variables: Mapping[str, str] = field(repr=False)
    images: Mapping[str, Prepared]
    driver: str
    hosts: Mapping[str, SshHost]
    known: Sequence[str]


def start_there(machines: Sequence[Machine], given: Given, report: Report) -> None:
    """Have the machines accept the run's key, put the run's directory on the first, and start the driver there.

    Args:
        machines: in the order of `given.hosts`.
        given: to the driver.
        report: receives progress.

    Raises:
        EngineError: the engine there refuses.
        ProviderError: a machine cannot be used, or the driver ended before the program ran; nothing is left there.
    """
    first, run_id = machines[0], given.record.id
    with ExitStack() as undo:
        with private_directory() as base:
            folder = base / "run"
            write_run(folder, given.record, given.files, given.variables, given.images)
            write_handed(folder, given.hosts)
            (folder / KNOWN_HOSTS_FILE).write_text("".join(f"{line}\n" for line in given.known))
            public = make_key(folder, run_id)
            seen, group = _look(first, next(iter(given.hosts.values())))
            for machine in machines:
                undo.callback(_quietly, partial(remove_key, machine.connection.through, run_id))
                add_key(machine.connection.through, run_id, line_of(public, seen))
            undo.callback(_quietly, partial(run_script, first.connection.through, _DROP, run_id))
            there = run_script(first.connection.through, _PLACE, run_id, given=_archive(folder))
        report(note(f"starting the driver on {first.name}"))
        there_folder, socket_there = Path(there.strip().splitlines()[-1]), Path(first.facts.socket)
        user = f"{first.facts.user[0]}:{first.facts.user[1] if first.facts.user[0] == 0 else group}"
        spec = driver_container(given.record, there_folder, given.driver, socket_there, (), {}, user)
        start_driver(first.engine, spec, given.record)
        undo.pop_all()


def _look(machine: Machine, address: SshHost) -> tuple[list[str], str]:
    """The addresses that connections from a machine may come from, and the number of its engine's group."""
    said = run_script(machine.connection.through, _LOOK, machine.facts.socket).splitlines()
    seen = ["127.0.0.1", "::1", machine.address, *said[0].split()]
    with suppress(OSError):  # a name that only the hosts resolve
        seen += [str(found[4][0]) for found in socket.getaddrinfo(address.host, None)]
    return list(dict.fromkeys(seen)), said[-1].strip()


def _archive(folder: Path) -> bytes:
    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0  # where root unpacks it, the files are root's
        info.uname = info.gname = ""
        return info

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(folder, ".", filter=owned)
    return data.getvalue()


def _quietly(action: Callable[[], object]) -> None:
    """Undo a step, though another undo has failed: the error that led here is the one to show."""
    with suppress(SkywardError):
        action()


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
    to_registry = ImageTarget(engine=find_engine(), registry=registry) if registry else None
    machine = SSH(manager.name, key=manager.key, known_hosts=manager.known_hosts)
    return on_first_host(launch, source, machine, variables, report, to_registry)


def _swarm(uses: Sequence[ProviderUse]) -> Swarm:
    """The one provider of all the pools."""
    from skyward.providers.swarm.provider import Swarm  # most runs have no swarm

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
