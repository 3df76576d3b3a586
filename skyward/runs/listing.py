"""The list of runs: those of this machine, and those behind pointers or on machines that are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from skyward.errors import SkywardError
from skyward.model.ssh import SshHost
from skyward.records import journal
from skyward.records.pools import POOLS
from skyward.records.run import RunRecord
from skyward.runs.find import host_of, is_pointer
from skyward.runs.place import RunPlace, RunState
from skyward.runs.ssh_runs import SshRuns
from skyward.runs.this_machine import ThisMachine

_TAIL = 256 * 1024  # bytes of a journal of events in which the latest counts of each pool are looked for
COUNTS = ("running", "queued", "done", "failed")


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list.

    Attributes:
        record: what is known of it.
        where: the name of the machine that it is on.
        state: what became of it so far.
        pools: identifiers of its pools so far.
        calls: how many calls of its pools are "running", "queued", "done" and "failed", as they were told of last.
    """

    record: RunRecord
    where: str
    state: RunState
    pools: Sequence[str] = ()
    calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """Runs, and why some are not known.

    Attributes:
        runs: by the time of their start.
        failures: machines that could not be asked, and why not.
    """

    runs: Sequence[ListedRun]
    failures: Mapping[str, SkywardError]


def list_runs(hosts: Sequence[SshHost] = (), *, ended: bool = False) -> Listing:
    """The runs of this user.

    Args:
        hosts: machines to look at, beside this one and those that its records point to.
        ended: whether those that have ended are wanted as well.
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
    """All runs on a machine of which some are pointed to; those that it does not have any more are "killed"."""
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
    """The sum of the latest counts of each pool."""
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
