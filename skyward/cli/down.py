"""`skyward down`: end runs by name, and pools, found by labels alone: those that are named, or all of this user's.

With `--json` standard output has one object per line and nothing else:

- `{"event": "ended", "run", "where", "state", "status"}`: a run that has ended; `state` is "killed" where it did
  not do so in order.

- `{"event": "ended", "pool", "where", "nodes"}`: a pool that is ended at a place, and how many nodes it had there.
- `{"event": "absent", "pool"}`: a pool that was named and of which nothing was found.
- `{"event": "spared", "pool", "where", "user"}`: a pool that `--all` leaves alone, because it is another user's.
- `{"event": "error", "pool", "where", "kind", "message"}`: what could not be ended, or a place that could not be asked,
  where `pool` is null; the exit status is then 6.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from skyward.builder.scratch import sweep
from skyward.cli.down_runs import detached_runs, end_runs, names_of_runs
from skyward.cli.kept import forget, identifiers, kept_at, names_of_pools
from skyward.cli.output import show_table
from skyward.cli.places import Place, ask_all, place_options
from skyward.errors import ConfigError, ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.process_id import current_user
from skyward.providers import SSH
from skyward.runs.listing import ListedRun


@dataclass(frozen=True, slots=True)
class Found:
    """A pool at a place.

    Attributes:
        pool: its identifier.
        place: where it is.
        nodes: how many nodes it has there.
        user: whose it is, as "name@host"; "" where no label says so.
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
    end, and asks. Exit status 1 where nothing of a name was found.
    """
    _check(pools, everything, belongs_to_all=everyone or is_agreed)
    sweep()  # what clients that were killed in a build have left
    told, found = _Told(as_json), list[Found]()
    hosts = [host for place in places if isinstance(place.provider, SSH) for host in place.provider.hosts]
    left = end_runs(pools, hosts, as_json=as_json, fail=told.run_failure)
    named = identifiers(left)
    for place, answer in ask_all(places) if left or everything else ():
        if isinstance(answer, SkywardError):
            told.failure(f"{place.name} cannot be asked", None, place, answer)
        else:
            found += _pools_at(place, answer)
    chosen = _all_of(found, everyone, told) if everything else [each for each in found if each.pool in named.values()]
    if everything:
        runs = detached_runs(hosts, None if everyone else current_user())
        if not (runs or found or told.failures or as_json):
            click.echo("no pool and no detached run was found", err=True)
        _agree(chosen, runs, told, is_agreed=is_agreed)
        end_runs([run.record.id for run in runs], hosts, as_json=as_json, fail=told.run_failure)
        chosen = [each for each in chosen if _is_there(each)] if runs else chosen
    for each in chosen:
        _end(each, told)
    for name, pool in named.items():
        if name in pools and all(each.pool != pool for each in chosen):
            told.absence(name, kept_at(pool))
    if told.failures:
        raise ProviderError("\n".join(["What was left may still run:", *told.failures]))
    if told.absent:
        told.suggest([*(each.pool for each in found), *names_of_runs(), *names_of_pools()])
    return int(bool(told.absent))


def _check(pools: Sequence[str], everything: bool, *, belongs_to_all: bool) -> None:
    if bool(pools) == everything:
        raise ConfigError("skyward down takes names of runs or pools, or --all; `skyward ps` shows what there is.")
    if not all(name.strip() for name in pools):
        raise ConfigError("skyward down takes names, and one that is given is empty. `skyward ps` shows what there is.")
    if not everything and belongs_to_all:
        raise ConfigError("--everyone and --yes belong to --all; a pool that is named is ended without a question.")


def _pools_at(place: Place, there: Sequence[Resource]) -> Iterator[Found]:
    """The pools of what is at a place. One whose parts name several users is nobody's."""
    for pool in sorted({str(each["pool"]) for each in there}):
        parts = [each for each in there if str(each["pool"]) == pool]
        users = {str(each.get("user", "")) for each in parts}
        nodes = sum(each["node"] >= 0 for each in parts)
        yield Found(pool, place, nodes, users.pop() if len(users) == 1 else "")


def _all_of(found: Sequence[Found], everyone: bool, told: _Told) -> list[Found]:
    """What `--all` means: this user's pools, unless everyone's are asked for."""
    user = current_user()
    chosen = [each for each in found if everyone or each.user == user]
    told.spare([each for each in found if each not in chosen], user)
    return chosen


def _is_there(found: Found) -> bool:
    """Whether something of a pool is left now that its run has ended, as far as its place can be asked."""
    try:
        return any(each["pool"] == found.pool for each in found.place.find())
    except SkywardError:
        return True


def _agree(chosen: Sequence[Found], runs: Sequence[ListedRun], told: _Told, *, is_agreed: bool) -> None:
    """Show what is going to be ended, and ask whether it shall be; nothing where that is agreed.

    Raises:
        ConfigError: there is nobody to ask.
        click.Abort: the answer is no.
    """
    if is_agreed or not (chosen or runs):
        return
    if told.as_json:
        raise ConfigError("skyward down --all --json asks nothing: say --yes as well. `skyward ps --json` shows pools.")
    if runs:
        show_table([("RUN", "WHERE", "USER"), *((run.record.id, run.where, run.record.user) for run in runs)])
    if chosen:
        rows = [("POOL", "NODES", "WHERE", "USER")]
        show_table(rows + [(each.pool, str(each.nodes), each.place.name, each.user or "-") for each in chosen])
    counts = [_count(number, noun) for number, noun in ((len(runs), "run"), (len(chosen), "pool")) if number]
    what = f"{'these' if len(runs) + len(chosen) > 1 else 'this'} {' and '.join(counts)}"
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"skyward down --all would end {what}, and standard input is not a terminal on which it could ask. Nothing "
            "was ended. Say --yes to end them without a question."
        )
    click.confirm(f"End {what}?", abort=True)


def _end(found: Found, told: _Told) -> None:
    try:
        found.place.provider.destroy(found.pool)
    except SkywardError as error:
        told.failure(f"pool {found.pool} at {found.place.name} could not be ended", found.pool, found.place, error)
    else:
        forget(found.pool)
        told.end(found)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


class _Told:
    """What is told of the ends, and what went wrong."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.failures: list[str] = []
        self.absent: list[str] = []  # names of which nothing was found

    def end(self, found: Found) -> None:
        if self.as_json:
            _say("ended", pool=found.pool, where=found.place.name, nodes=found.nodes)
        else:
            click.echo(f"pool {found.pool}: {_count(found.nodes, 'node')} ended at {found.place.name}")

    def spare(self, others: Sequence[Found], user: str) -> None:
        if self.as_json:
            for each in others:
                _say("spared", pool=each.pool, where=each.place.name, user=each.user)
        elif others:
            are = "is" if len(others) == 1 else "are"
            text = f"{_count(len(others), 'pool')} {are} not known to be of {user} and left alone (--everyone)"
            click.echo(text, err=True)

    def suggest(self, known: Sequence[str]) -> None:
        """Name what there is that comes close to the names of which nothing was found."""
        close = sorted({near for name in self.absent for near in get_close_matches(name, known)})
        if not self.as_json:
            meant = f"Did you mean {' or '.join(close)}?" if close else "`skyward ps` shows what there is."
            click.echo(meant, err=True)

    def absence(self, pool: str, kept_at: str) -> None:
        self.absent.append(pool)
        if self.as_json:
            _say("absent", pool=pool)
        else:
            where = f" here; it is kept on {kept_at}, whose hosts --ssh names" if kept_at else ""
            click.echo(f"pool {pool}: nothing of it was found{where}", err=True)

    def run_failure(self, what: str, run: str, error: SkywardError) -> None:
        self.failures.append(f"{what}: {error}")
        if self.as_json:
            _say("error", run=run, kind=type(error).__name__, message=str(error))

    def failure(self, what: str, pool: str | None, place: Place, error: SkywardError) -> None:
        self.failures.append(f"{what}: {error}")
        if self.as_json:
            _say("error", pool=pool, where=place.name, kind=type(error).__name__, message=str(error))


def _say(event: str, **about: Any) -> None:
    click.echo(json.dumps({"event": event, **about}, ensure_ascii=False))
