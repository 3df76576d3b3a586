"""Finds runs, one by its name or all: in this machine's records, where those point to, and on given machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from skyward.errors import HostLostError, ProviderError, RunNotFoundError, SkywardError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.records.run import (
    DOWN_FILE,
    RUN_FILE,
    RunFacts,
    RunRecord,
    folder_of,
    is_held,
    local_runs,
    runs_folder,
)
from skyward.runs.there import RunsThere

HERE = "this machine"


@dataclass(slots=True, kw_only=True)
class Run:
    """A run, and the directory here with what is known of it.

    Attributes:
        name: its name.
        folder: its directory; that of a run on another machine has what was fetched.
        there: the machine that it is on; None if this machine has all of it.
        is_known_here: whether this machine has a record of it. Else the directory is removed by `close`.
    """

    name: str
    folder: Path
    there: RunsThere | None = None
    is_known_here: bool = True
    _is_alive: bool | None = None
    _held: ExitStack = field(default_factory=ExitStack)

    @property
    def where(self) -> str:
        """Name of the machine that it is on."""
        return self.there.name if self.there is not None else HERE

    @property
    def facts(self) -> RunFacts:
        """What its record says, as of the last `refresh`.

        Raises:
            ProviderError: it cannot be read.
        """
        found = RunFacts.of(self.folder)
        if found is None:
            raise ProviderError(
                f"The record of run {self.name} on {self.where} cannot be read: it is damaged, or was removed."
            )
        return found if self.there is None else replace(found, is_alive=self._is_alive)

    def refresh(self, *parts: str) -> bool:
        """Fetch what is new of the record and of parts of the run, if it is on another machine.

        Returns:
            whether it is alive.

        Raises:
            HostLostError: its machine does not answer.
            ProviderError: its machine has no record of it any more.
        """
        if self.there is None:
            return is_held(self.folder)
        self._is_alive = self.there.pull(self.name, self.folder, parts)
        return self._is_alive

    def ask_down(self) -> None:
        """Ask it to end; it is killed if it does not in time."""
        if self.there is None:
            (self.folder / DOWN_FILE).touch(mode=0o600)
        else:
            self.there.ask_down(self.name)

    def outlast(self, say: Callable[[str], None]) -> None:
        """From now on repeat requests that its machine does not answer for a minute; `say` receives notes on that."""
        if self.there is not None:
            self.there.outlast(self.name, say)

    def close(self) -> None:
        """Close connections."""
        self._held.close()


def find_run(name: str, hosts: Sequence[SshHost] = (), *, exactly: bool = False) -> Run:
    """Return the run of this name, or the only one whose name begins with it.

    Args:
        name: of a run.
        hosts: machines to search if this one has no record of it.
        exactly: whether the beginning of a name is not enough.

    Raises:
        RunNotFoundError: there is none, or there are several.
        HostLostError: the machine with its journals does not answer.
        ProviderError: its record cannot be read, or the machine that it was started on no longer has one.
    """
    if not name:
        raise RunNotFoundError("The name of a run cannot be empty. `skyward ps --all` shows the runs known here.")
    names = [path.parent.name for path in runs_folder().glob(f"[!.]*/{RUN_FILE}")]
    if found := _named(name, names, HERE, exactly):
        return _known(found)
    for host in hosts:
        there = RunsThere(host)
        if found := _named(name, there.names(), there.name, exactly):
            held = ExitStack()
            held.callback(there.close)
            folder = held.enter_context(private_directory())
            run = Run(name=found, folder=folder, there=there, is_known_here=False, _held=held)
            run.refresh()
            return run
        there.close()
    looked = " and ".join([HERE.capitalize(), *(host.name for host in hosts)])
    raise RunNotFoundError(
        f"{looked} {'have' if hosts else 'has'} no record of a run {name}. `skyward ps --all` shows the runs that are "
        "known here; one that another machine has started is found on the machine of its driver: --at ssh://user@host."
    )


def _named(name: str, names: Sequence[str], where: str, exactly: bool) -> str | None:
    """Return the only run of a machine with this name or prefix.

    Raises:
        RunNotFoundError: there are several.
    """
    found = [name] if name in names else sorted(each for each in names if each.startswith(name) and not exactly)
    if len(found) > 1:
        raise RunNotFoundError(
            f"Several runs on {where} begin with {name}: {', '.join(found[:8])}. Name one of them in full."
        )
    return found[0] if found else None


def _known(name: str) -> Run:
    """Return a run of which this machine has a record."""
    run = Run(name=name, folder=folder_of(name))
    facts = run.facts
    if not facts.record.is_pointer or facts.is_collected:
        return run
    run.there = RunsThere(host_of(facts.record))
    run._held.callback(run.there.close)
    try:
        run.refresh()
    except HostLostError as error:
        raise HostLostError(
            f"Run {name} was started on {run.where}, which did not answer; it may still run there. {error} "
            f"What was fetched of it is in {run.folder}."
        ) from error
    return run


def host_of(record: RunRecord) -> SshHost:
    """Return the machine that a pointer leads to.

    Raises:
        ConfigError: its place is not such a machine.
    """
    host = SshHost.parse(f"ssh://{record.place}")
    return replace(host, key=record.key, known_hosts=record.known_hosts, trusts_jumps=record.rented is not None)


def list_runs(
    hosts: Sequence[SshHost] = (), *, ended: bool = False
) -> tuple[list[tuple[RunFacts, str]], Mapping[str, SkywardError]]:
    """Return the runs of this user with the names of their machines, and errors by the name of the machine.

    Args:
        hosts: machines to query, besides this one and those that its records point to.
        ended: whether to include runs that have ended.
    """
    pointers: dict[SshHost, list[RunFacts]] = {host: [] for host in hosts}
    runs: list[tuple[RunFacts, str]] = []
    for facts in local_runs(ended=True):
        if facts.record.is_pointer and not facts.is_collected:
            pointers.setdefault(host_of(facts.record), []).append(facts)
        elif ended or not facts.is_final:
            runs.append((facts, HERE))
    failures: dict[str, SkywardError] = {}
    with ThreadPoolExecutor(8, thread_name_prefix="skyward-ask") as threads:
        answers = [threads.submit(_ask, host, ended=ended) for host in pointers]
        for (host, known), answer in zip(pointers.items(), answers, strict=True):
            try:
                found = answer.result()
            except SkywardError as error:
                failures[host.name] = error
                found = [replace(facts, is_alive=None) for facts in known]
            else:
                there = {facts.record.id for facts in found}
                gone = [each for each in known if each.record.id not in there] if ended else []
                found += [replace(each, is_alive=False) for each in gone]
            runs += [(facts, host.name) for facts in found if ended or not facts.is_final]
    return sorted(runs, key=lambda run: run[0].record.started), failures


def _ask(host: SshHost, *, ended: bool) -> list[RunFacts]:
    with closing(RunsThere(host)) as there:
        return there.runs(ended=ended)
