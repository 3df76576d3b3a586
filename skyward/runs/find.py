"""Finds a run by its name: among this machine's records, behind a pointer among them, or on machines that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skyward.errors import HostLostError, ProviderError, RunNotFoundError
from skyward.model.ssh import SshHost
from skyward.records.run import RunRecord
from skyward.runs.place import RunPlace
from skyward.runs.ssh_runs import SshRuns
from skyward.runs.this_machine import COLLECTED, ThisMachine

HERE = ("local", "docker")  # values of RunRecord.place for runs whose record is where they run


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run and where its journals are.

    Attributes:
        record: what is known of it, as the machine with the journals has it.
        place: that machine.
        is_known_here: whether this machine has a record of it as well.
    """

    record: RunRecord
    place: RunPlace
    is_known_here: bool


def find_run(name: str, hosts: Sequence[SshHost] = ()) -> FoundRun:
    """The run of this name, or the only one whose name begins so.

    Args:
        name: of a run.
        hosts: machines to look at if this one has no record of it.

    Raises:
        RunNotFoundError: there is none, or there are several.
        HostLostError: the machine with its journals does not answer.
        ProviderError: the machine that it was started on has no record of it any more.
    """
    if not name:
        raise RunNotFoundError(
            "A run has a name, and the one given is empty. `skyward ps --all` shows the runs that are known here."
        )
    here = ThisMachine()
    record = _named(name, here.records(), here)
    if record is not None:
        if not is_pointer(record, here):
            return FoundRun(record, here, is_known_here=True)
        return _there(record, SshRuns(host_of(record)), is_known_here=True)
    for host in hosts:
        place = SshRuns(host)
        record = _named(name, place.records(), place)
        if record is not None:
            return FoundRun(record, place, is_known_here=False)
        place.close()
    looked = " and ".join(["This machine", *(host.name for host in hosts)])
    raise RunNotFoundError(
        f"{looked} {'have' if hosts else 'has'} no record of a run {name}. `skyward ps --all` shows the runs that are "
        "known here; one that another machine has started is found on the machine of its driver: --host user@host."
    )


def find_exactly(name: str, hosts: Sequence[SshHost] = ()) -> FoundRun | None:
    """The run of this very name, None if there is none; otherwise as `find_run`."""
    try:
        found = find_run(name, hosts)
    except RunNotFoundError:
        return None
    if found.record.id == name:
        return found
    found.place.close()
    return None


def is_pointer(record: RunRecord, here: ThisMachine) -> bool:
    """Whether the journals of a run that is recorded here are on another machine, and have not been fetched."""
    return record.place not in HERE and here.read(f"{record.id}/{COLLECTED}") is None


def host_of(record: RunRecord) -> SshHost:
    """The machine that a pointer leads to.

    Raises:
        ConfigError: its place is no such machine.
    """
    host = SshHost.parse(f"ssh://{record.place}")
    return replace(host, key=record.key, known_hosts=record.known_hosts, trusts_jumps=record.rented is not None)


def _named(name: str, records: Sequence[RunRecord], place: RunPlace) -> RunRecord | None:
    exact = [record for record in records if record.id == name]
    found = exact or [record for record in records if record.id.startswith(name)]
    if len(found) > 1:
        names = ", ".join(record.id for record in found[:8])
        raise RunNotFoundError(f"Several runs on {place.name} begin with {name}: {names}. Name one of them in full.")
    return found[0] if found else None


def _there(pointer: RunRecord, place: RunPlace, *, is_known_here: bool) -> FoundRun:
    try:
        record = place.record(pointer.id)
    except HostLostError as error:
        raise HostLostError(
            f"Run {pointer.id} was started on {place.name}, which cannot be asked; it may still run there. {error} "
            f"What was fetched of it is in {ThisMachine().folder / pointer.id}."
        ) from error
    if record is None:
        raise ProviderError(f"{place.name} has no record of run {pointer.id} any more: it was removed there.")
    return FoundRun(record, place, is_known_here)
