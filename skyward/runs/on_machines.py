"""Detached runs on other machines, reached by SSH: the driver is a container on the first host of its pools.

Rented machines are rented for the run.
"""

from __future__ import annotations

import socket
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from tempfile import TemporaryFile

from skyward._pool.description import DeclaredPool
from skyward.builder.events import Report, note
from skyward.delivery.deliver import ImageTarget, write_prepared
from skyward.errors import SkywardError
from skyward.model.image_fields import platform_of
from skyward.model.ssh import SshHost
from skyward.nodes.ssh_host import Machine
from skyward.providers import extensions
from skyward.providers.base import PoolRequest, Provider
from skyward.providers.ssh import SSH, SshAllocation, SshNodeHost
from skyward.records.run import Rental, RunRecord, folder_of
from skyward.runs.container import compiled_for, deliver_images, driver_container, start_driver
from skyward.runs.driver import write_launch
from skyward.runs.keys import add_key, address_of, known_keys, make_key, remove_key, run_script
from skyward.runs.shared_folder import shared_folder
from skyward.ssh.connection import KNOWN_HOSTS_FILE, write_handed

KEEP_S = 3600.0
_LEASE_S = 60.0
# Queried on the host first: the addresses that it may appear under, and the group with access to its engine.
_LOOK = r"""
echo "$(hostname -I 2>/dev/null || true)"
stat -c %g "$1"
"""
_PLACE = r"""
umask 077
state=${XDG_STATE_HOME:-$HOME/.local/state}/skyward
mkdir -p "$state/runs" "$state/folders" "$state/home" && mkdir "$state/runs/$1" && cd "$state/runs/$1" &&
    tar -xomf - && { [ ! -d earlier ] || mv earlier "$state/folders/$2"; } && mkdir -p "$state/folders/$2" && pwd -P
"""
_DROP = r"""
rm -rf "${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs/$1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A program that is to run elsewhere, with everything it needs there.

    Attributes:
        run: a run of it here.
        pool: its first one.
        folder: a draft of the run's directory, with the program's files.
        words: the arguments of `python` there.
        variables: environment variables for it; they may be secrets.
        report: receives progress.
    """

    run: RunRecord
    pool: DeclaredPool
    folder: Path
    words: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    report: Report


def on_first_host(program: Detached, provider: SSH) -> RunRecord:
    """Deliver the images of a program to the hosts of its pool, and start its driver on the first of them.

    Raises:
        ConfigError: what it needs cannot be determined before it runs.
        ImageError: an image is not available.
        EngineError: an engine refuses.
        ProviderError: a host cannot be used, or the driver ended before the program ran.
    """
    hosts = {host.name: address_of(host) for host in provider.hosts}
    known = [line for host in provider.hosts for line in known_keys(host, hosts[host.name])]
    request = PoolRequest(pool_id=token_hex(4), nodes=len(provider.hosts), lease_s=_LEASE_S, report=program.report)
    allocation = provider.open(request)
    assert isinstance(allocation, SshAllocation)
    with closing(allocation):
        allocation.acquire()
        machines = sorted(allocation.machines, key=lambda machine: provider.hosts.index(machine.host))
        record = _start(machines, program, allocation.target(machines), allocation.target(machines[:1]), hosts, known)
    host = provider.hosts[0]
    pointer = replace(record, place=host.name, key=host.key, known_hosts=host.known_hosts)
    pointer.write(folder_of(record.id))
    return pointer


def on_rented_machines(program: Detached, provider: Provider, keep_s: float | None) -> RunRecord:
    """Rent the machines of a program's first pool, which later ones share, and start its driver on the first of them.

    Args:
        program: with everything it needs.
        provider: rents them.
        keep_s: how long the driver's machine stays after the run's end if nobody fetches the results; None for an hour.

    Raises:
        ConfigError: the cloud's package or credentials are missing here.
        ImageError: an image is not available.
        EngineError: an engine refuses.
        ProviderError: machines are not available, or the driver ended before the program ran; they are then ended.
    """
    from skyward.providers.cloud.provider import CloudProvider  # most runs rent nothing

    assert isinstance(provider, CloudProvider)
    image, _ = compiled_for(program.pool)
    request = PoolRequest(
        pool_id=token_hex(4),
        image=image,
        platform=image.platform or platform_of(program.pool.architecture),
        lease_s=provider.capabilities.default_lease_s,
        report=program.report,
        **program.pool.machines,
    )
    provider.check(request)
    rented = Rental(
        provider=f"{type(provider).__name__}:{provider.cloud().region}",
        pool=request.pool_id,
        keep_s=KEEP_S if keep_s is None else keep_s,
    )
    folder = folder_of(program.run.id)
    with closing(provider.rent(request)) as allocation, ExitStack() as undo:
        machines = [host.machine for host in allocation.acquire() if isinstance(host, SshNodeHost)]
        folder.mkdir(mode=0o700, parents=True)
        undo.callback(rmtree, folder)
        keys = allocation.copy_keys(folder)
        hosts = {machine.address: SshHost(host=machine.address, user=machine.host.user) for machine in machines}
        lines = dict(line.split(" ", 1) for line in keys.known_hosts.read_text().splitlines())
        known = [f"{machine.address} {lines[machine.host.host]}" for machine in machines]
        reach = allocation.on_machines
        record = _start(machines, program, reach.target(machines), reach.target(machines[:1]), hosts, known, rented)
        place = machines[0].host.name
        pointer = replace(record, place=place, key=str(keys.login_key), known_hosts=str(keys.known_hosts))
        pointer.write(folder)
        undo.pop_all()
        program.report(note(_cost(allocation.hourly_cost, len(machines), rented)))
        allocation.hand_over()
    return pointer


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


def _start(
    machines: Sequence[Machine],
    program: Detached,
    to_pools: ImageTarget,
    to_driver: ImageTarget,
    hosts: Mapping[str, SshHost],
    known: Sequence[str],
    rented: Rental | None = None,
) -> RunRecord:
    """Deliver the images, make the machines accept the run's key, copy the run's directory to the first, and start the
    driver there.

    Args:
        machines: in the order of `hosts`.
        program: with everything it needs.
        to_pools: the machines, for the pool's image.
        to_driver: the first of them, for the driver's image.
        hosts: addresses at which they reach each other, by the program's names for them; the driver's first.
        known: lines of a known_hosts file for these.
        rented: how they were rented; None if they existed before.

    Returns:
        the record that the first machine has.

    Raises:
        EngineError: the engine there refuses.
        ProviderError: a machine cannot be used, or the driver ended before the program ran; nothing is left there.
    """
    first, run_id, folder = machines[0], program.run.id, program.folder
    prepared, image = deliver_images(program.pool, to_pools, to_driver, program.report)
    record = replace(program.run, detached=True, place="docker", container=f"skyward-run-{run_id}", rented=rented)
    write_launch(folder, record, program.words, program.variables)
    write_prepared(folder, prepared)
    write_handed(folder, hosts)
    (folder / KNOWN_HOSTS_FILE).write_text("".join(f"{line}\n" for line in known))
    seen, group = _look(first, next(iter(hosts.values())))
    public = make_key(folder, run_id)
    with ExitStack() as undo:
        for machine in machines:
            undo.callback(_quietly, remove_key, machine.connection.through, run_id)
            add_key(machine.connection.through, run_id, public, seen)
        there = first.connection.through
        undo.callback(_quietly, run_script, there, _DROP, run_id)
        with TemporaryFile() as data:
            earlier = shared_folder(record, folder_of(run_id))
            with tarfile.open(fileobj=data, mode="w") as archive:
                archive.add(folder, ".")
                if rented is not None and earlier.is_dir():  # what was fetched from the machines of earlier runs
                    archive.add(earlier, "earlier")
            data.seek(0)
            said = run_script(there, _PLACE, run_id, earlier.name, given=data)
        place = Path(said.strip().splitlines()[-1])
        program.report(note(f"starting the driver on {first.name}"))
        number, own_group = first.facts.user
        user = f"{number}:{own_group if number == 0 else group}"
        start_driver(first.engine, driver_container(record, place, image, Path(first.facts.socket), user))
        undo.pop_all()
    return record


def _look(machine: Machine, address: SshHost) -> tuple[list[str], str]:
    """Return the addresses that connections from a machine may come from, and the id of its engine's group."""
    said = run_script(machine.connection.through, _LOOK, machine.facts.socket).splitlines()
    seen = ["127.0.0.1", "::1", machine.address, *said[0].split()]
    with suppress(OSError):  # a name that only the hosts resolve
        seen += [str(found[4][0]) for found in socket.getaddrinfo(address.host, None)]
    return list(dict.fromkeys(seen)), said[-1].strip()


def _quietly(action: Callable[..., object], *arguments: object) -> None:
    """Undo a step, ignoring errors: the error that caused the undo is the one to report."""
    with suppress(SkywardError):
        action(*arguments)
