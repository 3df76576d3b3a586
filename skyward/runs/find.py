"""Finds runs, one by its name or all: in this machine's records, where those point to, and on given machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from skyward.errors import HostLostError, ProviderError, RunNotFoundError, SkywardError
from skyward.model.ssh import SshHost
from skyward.records import journal
from skyward.records.pools import POOLS
from skyward.records.run import RunRecord
from skyward.runs.place import COLLECTED, RunPlace, RunState, SshRuns, ThisMachine

HERE = ("local", "docker")  # values of RunRecord.place for runs whose record is on the machine they run on
_TAIL = 256 * 1024  # bytes at the end of an event journal that are searched for the latest counts of each pool
COUNTS = ("running", "queued", "done", "failed")


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run and the location of its journals.

    Attributes:
        record: its record, from the machine with the journals.
        place: that machine.
        is_known_here: whether this machine has a record of it as well.
    """

    record: RunRecord
    place: RunPlace
    is_known_here: bool


def find_run(name: str, hosts: Sequence[SshHost] = ()) -> FoundRun:
    """Return the run of this name, or the only one whose name begins with it.

    Args:
        name: of a run.
        hosts: machines to search if this one has no record of it.

    Raises:
        RunNotFoundError: there is none, or there are several.
        HostLostError: the machine with its journals does not answer.
        ProviderError: the machine that it was started on no longer has a record of it.
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
        return _there(record, SshRuns(host_of(record)))
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
    """Return the run of exactly this name, None if there is none; otherwise like `find_run`."""
    try:
        found = find_run(name, hosts)
    except RunNotFoundError:
        return None
    if found.record.id == name:
        return found
    found.place.close()
    return None


def is_pointer(record: RunRecord, here: ThisMachine) -> bool:
    """Return whether the journals of a run recorded here are on another machine and have not been fetched."""
    return record.place not in HERE and here.read(f"{record.id}/{COLLECTED}") is None


def host_of(record: RunRecord) -> SshHost:
    """Return the machine that a pointer leads to.

    Raises:
        ConfigError: its place is not such a machine.
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


def _there(pointer: RunRecord, place: RunPlace) -> FoundRun:
    try:
        record = place.record(pointer.id)
    except HostLostError as error:
        raise HostLostError(
            f"Run {pointer.id} was started on {place.name}, which cannot be asked; it may still run there. {error} "
            f"What was fetched of it is in {ThisMachine().folder / pointer.id}."
        ) from error
    if record is None:
        raise ProviderError(f"{place.name} has no record of run {pointer.id} any more: it was removed there.")
    return FoundRun(record, place, is_known_here=True)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list.

    Attributes:
        record: its record.
        where: the name of the machine that it is on.
        state: its state so far.
        pools: identifiers of its pools so far.
        calls: the latest reported numbers of its pools' calls that are "running", "queued", "done" and "failed".
    """

    record: RunRecord
    where: str
    state: RunState
    pools: Sequence[str] = ()
    calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """Runs, and the machines that could not be queried.

    Attributes:
        runs: in the order of their start.
        failures: errors by the name of the machine.
    """

    runs: Sequence[ListedRun]
    failures: Mapping[str, SkywardError]


def list_runs(hosts: Sequence[SshHost] = (), *, ended: bool = False) -> Listing:
    """Return the runs of this user.

    Args:
        hosts: machines to query, besides this one and those that its records point to.
        ended: whether to include runs that have ended.
    """
    here = ThisMachine()
    own = here.records()
    pointers: dict[SshHost, list[RunRecord]] = {host: [] for host in hosts}
    for record in own:
        if is_pointer(record, here):
            pointers.setdefault(host_of(record), []).append(record)
    runs = list(_listed(here, [record for record in own if not is_pointer(record, here)], ended=ended))
    failures: dict[str, SkywardError] = {}
    with ThreadPoolExecutor(8, thread_name_prefix="skyward-ask") as threads:
        asked = [threads.submit(_ask, host, records, ended=ended) for host, records in pointers.items()]
        for (host, records), answer in zip(pointers.items(), asked, strict=True):
            try:
                runs += answer.result()
            except SkywardError as error:
                failures[host.name] = error
                runs += [ListedRun(record, host.name, RunState("unknown", reason="lost")) for record in records]
    return Listing(sorted(runs, key=lambda run: run.record.started), failures)


def _ask(host: SshHost, pointers: Sequence[RunRecord], *, ended: bool) -> list[ListedRun]:
    """Return all runs on a machine that pointers may lead to; those that it no longer has are "killed"."""
    place = SshRuns(host)
    try:
        there = place.records()
        missing = {record.id for record in pointers} - {record.id for record in there}
        gone = [ListedRun(each, host.name, RunState("killed")) for each in pointers if ended and each.id in missing]
        return [*_listed(place, there, ended=ended), *gone]
    finally:
        place.close()


def _listed(place: RunPlace, records: Sequence[RunRecord], *, ended: bool) -> Iterator[ListedRun]:
    for record in records:
        state = place.state(record)
        if not state.is_final or ended:
            pools = [facts.path for facts in place.files(f"{record.id}/{POOLS}")]
            yield ListedRun(record, place.name, state, pools, _calls(place, record) if pools else {})


def _calls(place: RunPlace, record: RunRecord) -> Mapping[str, int]:
    """Return the sum of the latest counts of each pool."""
    path = f"{record.id}/events"
    segments = place.segments(path)
    if not segments:
        return {}
    start, size = segments[-1]
    offset = max(0, size - _TAIL)
    data = place.read(f"{path}/{start:020}.jsonl", offset, _TAIL) or b""
    latest: dict[str, Mapping[str, int]] = {}
    for entry in journal.parse(data, start + offset):
        if entry.fields.get("event") == "calls":
            latest[str(entry.fields.get("pool"))] = entry.fields
    return {name: sum(int(counts.get(name, 0)) for counts in latest.values()) for name in COUNTS} if latest else {}
