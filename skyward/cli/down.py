"""`skyward down`: ends runs by name, and pools, found by labels alone: the named ones, or all of this user's.

With `--json` standard output has one object per line and nothing else:

- `{"event": "ended", "run", "where", "state", "status"}`: a run that has ended; `state` is "killed" if it did not shut
  down in order.

- `{"event": "ended", "pool", "where", "nodes"}`: a pool that was ended at a place, and its number of nodes there.
- `{"event": "absent", "pool"}`: a named pool of which nothing was found.
- `{"event": "spared", "pool", "where", "user"}`: a pool that `--all` does not end, because it is another user's.
- `{"event": "error", "pool", "where", "kind", "message"}`: a pool that could not be ended, or a place that could not be
  queried, where `pool` is null; the exit status is then 6.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import click

from skyward.builder.folders import sweep
from skyward.cli.output import say_error, show_table
from skyward.cli.places import Place, ask_all, forget, identifiers, place_options, ssh_hosts
from skyward.cli.results import bring_here, give_back
from skyward.cli.runs import Printer
from skyward.errors import ConfigError, HostLostError, ProviderError, RunNotFoundError, SkywardError
from skyward.model.ssh import SshHost
from skyward.nodes.process_id import current_user
from skyward.records.run import GRACE_S, RunFacts, folder_of, note
from skyward.runs.find import Run, find_run, list_runs
from skyward.runs.follow import stop
from skyward.runs.keys import remove_key

_KILLED = 137  # status of a program that ignored the request to end


@dataclass(frozen=True, slots=True)
class Found:
    """A pool at a place.

    Attributes:
        pool: its identifier.
        place: where it is.
        nodes: number of nodes it has there.
        user: its owner, as "name@host"; "" if no label says so.
    """

    pool: str
    place: Place
    nodes: int
    user: str


@click.command()
@click.argument("pools", nargs=-1, metavar="[RUN|POOL]...")
@click.option("--all", "everything", is_flag=True, help="All pools and detached runs of this user.")
@click.option("--everyone", is_flag=True, help="With --all: those of other users and other machines as well.")
@click.option("--yes", "-y", "is_agreed", is_flag=True, help="With --all: end them without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@place_options
def command(
    pools: tuple[str, ...],
    everything: bool,
    everyone: bool,
    is_agreed: bool,
    places: Sequence[Place],
    as_json: bool,
) -> int:
    """End runs and pools by their names, or all of this user's.

    The names are those that `skyward ps` shows; all are those that this user started from this machine. Ends them
    on this machine and at what the options name; a run on the machine that it is on. A run has 10 seconds to end
    its pools before it is killed. A pool whose client still runs loses its nodes. --all shows what it is going to
    end, and asks. Exit status 1 if a name was not found.
    """
    if bool(pools) == everything:
        raise ConfigError("Name the runs or pools to end, or give --all; `skyward ps` shows what there is.")
    if not all(name.strip() for name in pools):
        raise ConfigError("One of the names is empty, and nothing was ended. `skyward ps` shows what there is.")
    if not everything and (everyone or is_agreed):
        raise ConfigError("--everyone and --yes belong to --all; a pool that is named is ended without a question.")
    sweep()  # leftovers of clients that were killed during a build
    told, hosts = _Told(as_json=as_json), ssh_hosts(places)
    if everything:
        found = _found(places, None, told)
        chosen = _all_of(found, everyone, told)
        runs = _detached_runs(hosts, None if everyone else current_user())
        if not (runs or found or told.failures or as_json):
            click.echo("no pool and no detached run was found", err=True)
        _agree(chosen, runs, told, is_agreed=is_agreed)
        _end_runs([run.record.id for run, _ in runs], hosts, told)
        absent = []
    else:
        left = identifiers(_end_runs(pools, hosts, told))
        chosen = _found(places, set(left.values()), told)
        ended = {each.pool for each in chosen}
        absent = [name for name, pool in left.items() if name in pools and pool not in ended]
    for each in chosen:
        _end(each, told)
    for name in absent:
        told.event("absent", f"There is no pool or run named {name}.", pool=name)
    if told.failures:
        raise ProviderError("\n".join(["What was left may still run:", *told.failures]))
    return int(bool(absent))


def _found(places: Sequence[Place], pools: set[str] | None, told: _Told) -> list[Found]:
    """Return these pools, or all, wherever they are; one whose parts name several users has no user."""
    found = list[Found]()
    for place, answer in ask_all(places) if pools is None or pools else ():
        if isinstance(answer, SkywardError):
            # one that only records name matters if they have parts of these pools there
            if pools is None or place.pools is None or not place.pools.isdisjoint(pools):
                told.failure(f"{place.name} did not answer", answer, pool=None, where=place.name)
            continue
        there = {str(each["pool"]) for each in answer}
        for pool in sorted(there if pools is None else there & pools):
            parts = [each for each in answer if str(each["pool"]) == pool]
            users = {str(each.get("user", "")) for each in parts}
            nodes = sum(each["node"] >= 0 for each in parts)
            found.append(Found(pool, place, nodes, users.pop() if len(users) == 1 else ""))
    return found


def _all_of(found: Sequence[Found], everyone: bool, told: _Told) -> list[Found]:
    """Return the pools that `--all` means: this user's, or with `everyone` those of all users."""
    user = current_user()
    for each in [] if everyone else found:
        if each.user != user:
            text = f"pool {each.pool} is not known to be of {user} and left alone (--everyone)"
            told.event("spared", text, pool=each.pool, where=each.place.name, user=each.user)
    return [each for each in found if everyone or each.user == user]


def _agree(chosen: Sequence[Found], runs: Sequence[tuple[RunFacts, str]], told: _Told, *, is_agreed: bool) -> None:
    """Show what is going to be ended and ask for confirmation, unless it has been given.

    Raises:
        ConfigError: nobody can be asked.
        click.Abort: the answer is no.
    """
    if is_agreed or not (chosen or runs):
        return
    if told.as_json:
        raise ConfigError("skyward down --all --json does not ask, and needs --yes. `skyward ps --json` shows pools.")
    if runs:
        show_table([("RUN", "WHERE", "USER"), *((run.record.id, where, run.record.user) for run, where in runs)])
    if chosen:
        rows = [("POOL", "NODES", "WHERE", "USER")]
        show_table(rows + [(each.pool, str(each.nodes), each.place.name, each.user or "-") for each in chosen])
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            "skyward down --all would end these, and standard input is not a terminal on which it could ask. Nothing "
            "was ended. Use --yes to end them without confirmation."
        )
    click.confirm("End these?", abort=True)


def _end(found: Found, told: _Told) -> None:
    try:
        found.place.provider.destroy(found.pool)
    except SkywardError as error:
        what = f"pool {found.pool} at {found.place.name} could not be ended"
        told.failure(what, error, pool=found.pool, where=found.place.name)
    else:
        forget(found.pool)
        text = f"pool {found.pool}: {found.nodes} node{'s' * (found.nodes != 1)} ended at {found.place.name}"
        told.event("ended", text, False, pool=found.pool, where=found.place.name, nodes=found.nodes)


class _Told(Printer):
    """Output of the command, and the failures so far."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self.failures: list[str] = []

    def failure(self, what: str, error: SkywardError, **about: Any) -> None:
        self.failures.append(f"{what}: {error}")
        if self.as_json:
            say_error(error, **about)


def _end_runs(names: Sequence[str], hosts: Sequence[SshHost], told: _Told) -> list[str]:
    """End the runs among these names; return the pools that remain to be ended: all other names, and the pools of the
    ended runs, in case a program could not end them.
    """
    pools: list[str] = []
    for name in names:
        try:
            found = _find(name, hosts)
            pools += [name] if found is None else _end_run(found, told)
        except SkywardError as error:
            if not (isinstance(error, HostLostError) and _end_unheard(name, told)):
                told.failure(f"run {name} could not be ended", error, run=name)
    return pools


def _find(name: str, hosts: Sequence[SshHost]) -> Run | None:
    """Return the run of exactly this name, if there is one. Lost hosts are skipped: the name may be a pool's, and the
    search for pools reports them.
    """
    with suppress(RunNotFoundError):
        return find_run(name, exactly=True)
    for host in hosts:
        with suppress(RunNotFoundError, HostLostError):
            return find_run(name, [host], exactly=True)
    return None


def _detached_runs(hosts: Sequence[SshHost], user: str | None) -> list[tuple[RunFacts, str]]:
    """Return the detached runs in progress: here, where records of this machine point to, and on these machines.

    One whose machine does not answer is included if it can be ended through its rented machines. `user` is who started
    them, as "name@host"; None means anybody.
    """
    return [
        (run, where)
        for run, where in list_runs(hosts)[0]
        if run.record.detached and user in (None, run.record.user) and (run.phase == "running" or run.record.rented)
    ]


def _end_unheard(name: str, told: _Told) -> bool:
    """End the rented machines of a run whose driver's machine does not answer; return whether it has any."""
    facts = RunFacts.of(folder_of(name))
    if facts is None or (record := facts.record).rented is None:
        return False
    from skyward.runs.on_machines import end_rented

    end_rented(record.rented)
    note(folder_of(name), "collected")
    text = f"run {name} ended at {record.place}, which did not answer: its machines are given back"
    told.event("ended", text, False, run=name, where=record.place, state="killed", status=None)
    return True


def _end_run(run: Run, told: _Told) -> list[str]:
    """End a run; return the pools that it had."""
    run.outlast(told.note)
    with closing(run):
        before, where = run.facts, run.where
        if not before.is_final and not told.as_json:
            told.note(f"asking {run.name} to end; it has {GRACE_S:g} s to end its pools")
        facts = stop(run)
        was_killed = facts.phase == "killed" or (not before.is_final and facts.status == _KILLED)
        if facts.phase == "killed" and run.is_known_here and run.there is not None:
            remove_key(run.there.host, run.name)  # its driver could not
        text = f"run {run.name} ended at {where}{' (killed)' if was_killed else ''}"
        if before.is_final:
            text = f"run {run.name} had ended before at {where} ({facts.state})"
        phase = "killed" if was_killed else facts.phase
        told.event("ended", text, False, run=run.name, where=where, state=phase, status=facts.status)
        rented = facts.record.rented
        if rented is None or not run.is_known_here:
            return list(facts.pools)
        bring_here(run, told)
        if facts.phase == "killed":
            give_back(run.name, rented, told)
            note(run.folder, "collected")
        return []
