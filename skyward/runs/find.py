"""Finds runs, one by its name or all: in this machine's records, where those point to, and on given machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from skyward.errors import HostLostError, ProviderError, RunNotFoundError, SkywardError
from skyward.model.ssh import SshHost
from skyward.records.run import RunFacts, RunRecord
from skyward.runs.place import RunPlace, RunState, SshRuns, ThisMachine


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run and the location of its journals.

    Attributes:
        facts: what its record says, on the machine with the journals.
        place: that machine.
        is_known_here: whether this machine has a record of it as well.
    """

    facts: RunFacts
    place: RunPlace
    is_known_here: bool

    @property
    def record(self) -> RunRecord:
        """The facts about it that were known when it started."""
        return self.facts.record


def find_run(name: str, hosts: Sequence[SshHost] = ()) -> FoundRun:
    """Return the run of this name, or the only one whose name begins with it.

    Args:
        name: of a run.
        hosts: machines to search if this one has no record of it.

    Raises:
        RunNotFoundError: there is none, or there are several.
        HostLostError: the machine with its journals does not answer.
        ProviderError: its record cannot be read, or the machine that it was started on no longer has one.
    """
    if not name:
        raise RunNotFoundError("The name of a run cannot be empty. `skyward ps --all` shows the runs known here.")
    here = ThisMachine()
    if found := _named(name, here):
        facts = _facts(here, found)
        if not facts.record.is_pointer or facts.is_collected:
            return FoundRun(facts, here, is_known_here=True)
        return _there(facts.record, SshRuns(host_of(facts.record)))
    for host in hosts:
        place = SshRuns(host)
        if found := _named(name, place):
            return FoundRun(_facts(place, found), place, is_known_here=False)
        place.close()
    looked = " and ".join(["This machine", *(host.name for host in hosts)])
    raise RunNotFoundError(
        f"{looked} {'have' if hosts else 'has'} no record of a run {name}. `skyward ps --all` shows the runs that are "
        "known here; one that another machine has started is found on the machine of its driver: --at ssh://user@host."
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


def host_of(record: RunRecord) -> SshHost:
    """Return the machine that a pointer leads to.

    Raises:
        ConfigError: its place is not such a machine.
    """
    host = SshHost.parse(f"ssh://{record.place}")
    return replace(host, key=record.key, known_hosts=record.known_hosts, trusts_jumps=record.rented is not None)


def _named(name: str, place: RunPlace) -> str | None:
    """Return the only run of a machine with this name or prefix.

    Raises:
        RunNotFoundError: there are several.
    """
    names = place.names()
    found = [name] if name in names else [each for each in names if each.startswith(name)]
    if len(found) > 1:
        raise RunNotFoundError(
            f"Several runs on {place.name} begin with {name}: {', '.join(found[:8])}. Name one of them in full."
        )
    return found[0] if found else None


def _facts(place: RunPlace, run_id: str) -> RunFacts:
    facts = place.facts(run_id)
    if facts is None:
        raise ProviderError(
            f"The record of run {run_id} on {place.name} cannot be read: it is damaged, or was removed."
        )
    return facts


def _there(pointer: RunRecord, place: RunPlace) -> FoundRun:
    try:
        facts = place.facts(pointer.id)
    except HostLostError as error:
        raise HostLostError(
            f"Run {pointer.id} was started on {place.name}, which did not answer; it may still run there. {error} "
            f"What was fetched of it is in {ThisMachine().folder / pointer.id}."
        ) from error
    if facts is None:
        raise ProviderError(f"{place.name} has no record of run {pointer.id} any more: it was removed there.")
    return FoundRun(facts, place, is_known_here=True)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list.

    Attributes:
        facts: what its record says.
        where: the name of the machine that it is on.
        state: its state so far.
    """

    facts: RunFacts
    where: str
    state: RunState

    @property
    def record(self) -> RunRecord:
        """The facts about it that were known when it started."""
        return self.facts.record


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
    pointers: dict[SshHost, list[RunFacts]] = {host: [] for host in hosts}
    runs = list[ListedRun]()
    for facts in here.runs(ended=True):
        if facts.record.is_pointer and not facts.is_collected:
            pointers.setdefault(host_of(facts.record), []).append(facts)
        elif ended or not RunState.of(facts).is_final:
            runs.append(ListedRun(facts, here.name, RunState.of(facts)))
    failures: dict[str, SkywardError] = {}
    with ThreadPoolExecutor(8, thread_name_prefix="skyward-ask") as threads:
        asked = [threads.submit(_ask, host, known, ended=ended) for host, known in pointers.items()]
        for (host, known), answer in zip(pointers.items(), asked, strict=True):
            try:
                runs += answer.result()
            except SkywardError as error:
                failures[host.name] = error
                runs += [ListedRun(facts, host.name, RunState("unknown", reason="lost")) for facts in known]
    return Listing(sorted(runs, key=lambda run: run.record.started), failures)


def _ask(host: SshHost, pointers: Sequence[RunFacts], *, ended: bool) -> list[ListedRun]:
    """Return the runs on a machine; of those that pointers lead to and that it no longer has, it is "killed"."""
    place = SshRuns(host)
    try:
        runs = [ListedRun(facts, place.name, RunState.of(facts)) for facts in place.runs(ended=ended)]
    finally:
        place.close()
    known = {run.record.id for run in runs}
    gone = [ListedRun(each, host.name, RunState("killed")) for each in pointers if each.record.id not in known]
    return [*(run for run in runs if ended or not run.state.is_final), *(gone if ended else ())]
