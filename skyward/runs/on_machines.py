"""Detached runs on other machines, reached by SSH: the driver is a container on the first host of its pools.

Rented machines are rented for the run.
"""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from skyward._pool.description import DeclaredPool
from skyward.builder.events import note
from skyward.errors import SkywardError
from skyward.model.image_fields import platform_of
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.nodes.ssh_host import Machine
from skyward.providers import extensions
from skyward.providers.base import PoolRequest
from skyward.providers.ssh import SSH, SshAllocation, SshNodeHost
from skyward.records.run import Rental, RunRecord, folder_of
from skyward.runs.container import Delivered, Detached, compiled_for, driver_container, start_driver
from skyward.runs.keys import add_key, address_of, known_keys, line_of, make_key, remove_key, run_script
from skyward.ssh.connection import KNOWN_HOSTS_FILE, write_handed

if TYPE_CHECKING:
    from skyward.providers.base import Provider
    from skyward.providers.cloud.boot import PoolKeys


KEEP_S = 3600.0
_LEASE_S = 60.0
# Queried on the host first: the addresses that it may appear under, and the group with access to its engine.
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


def on_first_host(program: Detached, provider: SSH) -> RunRecord:
    """Deliver the images of a program's pools to their hosts, and start its driver on the first of them.

    Args:
        program: with everything it needs.
        provider: of the hosts that the driver reaches, its own first.

    Raises:
        ConfigError: what it needs cannot be determined before it runs.
        ImageError: an image is not available.
        EngineError: an engine refuses.
        ProviderError: a host cannot be used, or the driver ended before the program ran.
    """
    hosts = {host.name: address_of(host) for host in provider.hosts}
    known = [line for host in provider.hosts for line in known_keys(host, hosts[host.name])]
    record = program.record()
    request = PoolRequest(pool_id=token_hex(4), nodes=len(provider.hosts), lease_s=_LEASE_S, report=program.report)
    allocation = provider.open(request)
    assert isinstance(allocation, SshAllocation)
    with closing(allocation):
        allocation.acquire()
        machines = sorted(allocation.machines, key=lambda machine: provider.hosts.index(machine.host))
        delivered = program.deliver(allocation.target(machines), allocation.target(machines[:1]))
        _start_there(machines, program, record, delivered, hosts, known)
    host = provider.hosts[0]
    pointer = replace(record, place=host.name, key=host.key, known_hosts=host.known_hosts)
    pointer.write(folder_of(record.id))
    return pointer


def on_rented_machines(program: Detached, provider: Provider, pool: DeclaredPool, keep_s: float | None) -> RunRecord:
    """Rent the machines of a program's first pool, and start its driver on the first of them.

    Args:
        program: with everything it needs.
        provider: rents them.
        pool: the first pool; later ones share its machines.
        keep_s: how long the driver's machine stays after the run's end if nobody fetches the results; None for an hour.

    Raises:
        ConfigError: the cloud's package or credentials are missing here.
        ImageError: an image is not available.
        EngineError: an engine refuses.
        ProviderError: machines are not available, or the driver ended before the program ran; they are then ended.
    """
    from skyward.providers.cloud.provider import CloudProvider  # most runs rent nothing

    assert isinstance(provider, CloudProvider)
    image, _ = compiled_for(pool)
    request = PoolRequest(
        pool_id=token_hex(4),
        image=image,
        platform=image.platform or platform_of(pool.architecture),
        lease_s=provider.capabilities.default_lease_s,
        report=program.report,
        **pool.machines,
    )
    provider.check(request)
    rented = Rental(
        provider=f"{type(provider).__name__}:{provider.cloud().region}",
        pool=request.pool_id,
        keep_s=KEEP_S if keep_s is None else keep_s,
    )
    record, folder = program.record(rented), folder_of(program.run.id)
    with closing(provider.rent(request)) as allocation:
        machines = [host.machine for host in allocation.acquire() if isinstance(host, SshNodeHost)]
        reach = allocation.on_machines
        delivered = program.deliver(reach.target(machines), reach.target(machines[:1]))
        folder.mkdir(mode=0o700, parents=True)
        keys = allocation.copy_keys(folder)
        hosts = {machine.address: SshHost(host=machine.address, user=machine.host.user) for machine in machines}
        _start_there(machines, program, record, delivered, hosts, _known_inside(keys, machines))
        place = machines[0].host.name
        pointer = replace(record, place=place, key=str(keys.login_key), known_hosts=str(keys.known_hosts))
        pointer.write(folder)
        program.report(note(_cost(allocation.hourly_cost, len(machines), rented)))
        allocation.hand_over()
    return pointer


def _known_inside(keys: PoolKeys, machines: Sequence[Machine]) -> list[str]:
    """Return the host keys of machines, at the addresses at which they reach each other."""
    known = dict(line.split(" ", 1) for line in keys.known_hosts.read_text().splitlines())
    return [f"{machine.address} {known[machine.host.host]}" for machine in machines]


def _cost(hourly: float, machines: int, rented: Rental) -> str:
    price = f" for about {hourly:.3f} USD per hour" if hourly else ""
    return (
        f"{machines} rented machine{'s' * (machines > 1)} run{'s' * (machines == 1)}{price} until the run has ended; "
        f"the first stays until its results are fetched, at most {rented.keep_s / 60:.0f} min longer"
    )


def end_rented(rented: Rental) -> None:
    """End the machines that were rented for a run.

    Raises:
        ProviderError: the cloud cannot be reached, or machines do not end; names them.
        ConfigError: the cloud's package or credentials are missing here.
    """
    name, _, region = rented.provider.partition(":")
    extensions().load(name)(region).destroy(rented.pool)


def _start_there(
    machines: Sequence[Machine],
    program: Detached,
    record: RunRecord,
    delivered: Delivered,
    hosts: Mapping[str, SshHost],
    known: Sequence[str],
) -> None:
    """Make the machines accept the run's key, copy the run's directory to the first, and start the driver there.

    Args:
        machines: in the order of `hosts`.
        program: with everything it needs.
        record: of the run, as the driver's host has it.
        delivered: images that the machines have.
        hosts: addresses at which they reach each other, by the program's names for them; the driver's first.
        known: lines of a known_hosts file for these.

    Raises:
        EngineError: the engine there refuses.
        ProviderError: a machine cannot be used, or the driver ended before the program ran; nothing is left there.
    """
    first, run_id = machines[0], record.id
    there = first.connection.through
    with ExitStack() as undo:
        with private_directory() as base:
            folder = base / "run"
            program.write(folder, record, delivered)
            write_handed(folder, hosts)
            (folder / KNOWN_HOSTS_FILE).write_text("".join(f"{line}\n" for line in known))
            public = make_key(folder, run_id)
            seen, group = _look(first, next(iter(hosts.values())))
            for machine in machines:
                undo.callback(_quietly, partial(remove_key, machine.connection.through, run_id))
                add_key(machine.connection.through, run_id, line_of(public, seen))
            undo.callback(_quietly, partial(run_script, there, _DROP, run_id))
            place = run_script(there, _PLACE, run_id, given=_archive(folder)).strip().splitlines()[-1]
        program.report(note(f"starting the driver on {first.name}"))
        number, own_group = first.facts.user
        user = f"{number}:{own_group if number == 0 else group}"
        spec = driver_container(record, Path(place), delivered.driver, Path(first.facts.socket), user)
        start_driver(first.engine, spec, record)
        undo.pop_all()


def _look(machine: Machine, address: SshHost) -> tuple[list[str], str]:
    """Return the addresses that connections from a machine may come from, and the id of its engine's group."""
    said = run_script(machine.connection.through, _LOOK, machine.facts.socket).splitlines()
    seen = ["127.0.0.1", "::1", machine.address, *said[0].split()]
    with suppress(OSError):  # a name that only the hosts resolve
        seen += [str(found[4][0]) for found in socket.getaddrinfo(address.host, None)]
    return list(dict.fromkeys(seen)), said[-1].strip()


def _archive(folder: Path) -> bytes:
    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0  # if root unpacks it, the files belong to root
        info.uname = info.gname = ""
        return info

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(folder, ".", filter=owned)
    return data.getvalue()


def _quietly(action: Callable[[], object]) -> None:
    """Undo a step, ignoring errors: the error that caused the undo is the one to report."""
    with suppress(SkywardError):
        action()
