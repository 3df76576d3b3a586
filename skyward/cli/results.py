"""Output and results of a run: `skyward logs`, also after its end; `skyward attach`, until its end; `skyward result`:
how it ended, the values it has saved, and the files in its output directory.

With `--json` standard output has one object per line and nothing else; each has `event` and `run`.

Those of `logs` are the entries of the journal, `output`: those of the program have `t`, `stream` and `text`; those of
nodes also `pool`, `node`, `rank` and `call`.

Those of `attach` are `output`, with what the program printed, and at the end `end`: `status` (null if unknown),
`ended`, `reason`.

Those of `result`:

- `state`: `phase` ("running", "ended", "killed", "unknown"), `status`, `ended` (seconds since 1970), `reason`.
- `value`: `name`, `kind` ("json", "bin", "npy"), `size`, and `value` if `kind` is "json"; numbers that JSON lacks are
  the strings "NaN", "Infinity" and "-Infinity".
- `file`: `path`, `size`.
- `fetched`: `path`, the directory of `--into`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click

from skyward.builder.events import readable
from skyward.cli.main import INTERRUPTED
from skyward.cli.output import show_table
from skyward.cli.runs import Printer, called, duration_text, host_options, seconds_of, transfer
from skyward.errors import ConfigError, ProviderError, RunNotFoundError, SkywardError
from skyward.model.ssh import SshHost
from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.pools import runs_of_pool
from skyward.records.run import RUN_FILE, Rental, RunRecord
from skyward.runs.find import FoundRun, find_run
from skyward.runs.follow import Losses, collect, fetch, follow, size_there
from skyward.runs.place import FileFacts, RunPlace, RunState
from skyward.runs.saved import SUFFIXES, shown

_GONE = "older output is gone: a full record keeps the newest"
_KILLED = "ended without a result: it was killed, or the machine was restarted"
_SHOWN = 60  # maximum number of characters of a value in the list


@click.command()
@click.argument("run", metavar="RUN|POOL")
@click.option("--follow", "-f", "goes_on", is_flag=True, help="Go on until the run ends, or Ctrl-C.")
@click.option("--since", metavar="DURATION", help="Only the last 90s, 10m, 2h or 1d.")
@click.option("--nodes", is_flag=True, help="What its nodes printed, with the node before each line.")
@click.option("--node", type=int, help="What this node printed.")
@click.option("--rank", type=int, help="What this rank printed.")
@click.option("--call", type=int, help="What this call printed, by its number in the pool.")
@click.option("--pool", help="What the nodes of this pool printed.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@host_options
def logs(
    run: str,
    goes_on: bool,
    since: str | None,
    nodes: bool,
    node: int | None,
    rank: int | None,
    call: int | None,
    pool: str | None,
    as_json: bool,
    hosts: Sequence[SshHost],
) -> int:
    """Show what a run or a pool has printed, also after its end.

    Of a run that is what its program printed, with what came from nodes among it; with --nodes, or a
    node, rank, call or pool, what nodes printed alone. Every program that opens a pool is a run; of a
    pool that is kept it is what the nodes printed for all programs that have had it.
    """
    begin = time.time() - seconds_of(since) if since else 0.0
    runs, pool = _find(run, pool, hosts)
    given = {"node": node, "rank": rank, "call": call, "pool": pool}
    wanted = {name: value for name, value in given.items() if value is not None}
    known = set[int]()
    try:
        for found in runs:
            with closing(found.place):
                known |= _show(found, wanted, begin, nodes=nodes, goes_on=goes_on, as_json=as_json)
                if node is not None and node not in known:
                    known |= _ready_nodes(found, pool)
    except KeyboardInterrupt:
        if not goes_on:
            raise
        return INTERRUPTED
    if node is not None and node not in known:
        there = f"its nodes are {', '.join(map(str, sorted(known)))}" if known else "it has had no nodes"
        raise ConfigError(f"{f'Pool {pool}' if pool else f'Run {run}'} has no node {node}: {there}.")
    return 0


def _show(
    found: FoundRun, wanted: Mapping[str, Any], begin: float, *, nodes: bool, goes_on: bool, as_json: bool
) -> set[int]:
    """Print the output of a run; return the nodes that have printed something, in the wanted pool if there is one."""
    printer = Printer(as_json=as_json, run=found.record.id)
    lines = Lines(printer)
    seen = set[int]()
    try:
        of_nodes = nodes or bool(wanted) or not found.place.files(f"{found.record.id}/output")
        for entry in _entries(found, "nodes" if of_nodes else "output", printer, goes_on=goes_on):
            fields = entry.fields
            if entry.follows_gap:
                printer.note(_GONE)
            if fields.get("t", begin) >= begin and all(fields.get(name) == value for name, value in wanted.items()):
                (lines if of_nodes and not as_json else printer).entry(fields)
            seen |= _node_in(fields, wanted.get("pool"))
    finally:
        lines.finish()
    return seen


def _ready_nodes(found: FoundRun, pool: str | None) -> set[int]:
    """Return the nodes that a run has had in all its pools, or in one."""
    text = b""
    while more := found.place.read(f"{found.record.id}/{RUN_FILE}", len(text)):
        text += more
    return set[int]().union(*(_node_in(entry.fields, pool) for entry in journal.parse(text)))


def _node_in(fields: Mapping[str, Any], pool: str | None) -> set[int]:
    node = fields.get("node")
    return {node} if isinstance(node, int) and pool in (None, fields.get("pool")) else set()


class Lines:
    """Prints the output of nodes line by line, each prefixed with its rank, joining lines that arrive in pieces."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._begun: dict[tuple[Any, ...], tuple[Mapping[str, Any], str]] = {}

    def entry(self, fields: Mapping[str, Any]) -> None:
        """Print the complete lines of an entry; buffer the rest for the next entry of the same call and stream."""
        key = tuple(fields.get(name) for name in ("pool", "rank", "call", "stream"))
        _, begun = self._begun.pop(key, (fields, ""))
        text = begun + str(fields.get("text", ""))
        whole, rest = text[: text.rfind("\n") + 1], text[text.rfind("\n") + 1 :]
        if rest:
            self._begun[key] = fields, rest
        if whole:
            self._printer.entry({**fields, "text": whole}, prefix=_prefix(fields))

    def finish(self) -> None:
        """Print the remaining, unterminated lines."""
        for fields, rest in self._begun.values():
            self._printer.entry({**fields, "text": rest}, prefix=_prefix(fields))
        self._begun.clear()


def _find(name: str, pool: str | None, hosts: Sequence[SshHost]) -> tuple[Iterable[FoundRun], str | None]:
    """Return the run of this name, or else the runs that had the pool of this name or identifier, with the identifier.

    A pool of exactly this name takes precedence over a run whose name only begins with it.
    """
    try:
        found = find_run(name, hosts)
    except RunNotFoundError:
        had = runs_of_pool(name)
        if had is None:
            raise
    else:
        had = None if found.record.id == name else runs_of_pool(name, exactly=True)
        if had is None:
            return [found], pool
        found.place.close()
    only, runs = had
    return map(find_run, runs), only


def _entries(found: FoundRun, name: str, printer: Printer, *, goes_on: bool) -> Iterator[Entry]:
    if goes_on:
        losses = Losses(found.place.name, found.record.id, printer.note)
        state = yield from follow(found.place, found.record.id, name, losses)
    else:
        yield from found.place.entries(found.record.id, name)
        state = found.place.state(found.record.id)
    if state.phase == "killed":
        printer.note(f"{found.record.id} {_KILLED}.")
    elif not state.is_final and not goes_on:
        printer.note(f"{found.record.id} still runs; {called(found, 'logs -f')} goes on.")


def _prefix(fields: Mapping[str, Any]) -> str:
    return f"[{fields.get('rank', fields.get('node', '?'))}] "


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@host_options
def attach(run: str, as_json: bool, hosts: Sequence[SshHost]) -> int:
    """Show the output of a run, from its start until it ends.

    It is shown as it comes. Ctrl-C detaches: the run goes on. A connection that is cut is made again, and goes on
    where it was. The exit status is that of the program; 6 if its machine is lost, or if it was killed.
    """
    found = find_run(run, hosts)
    printer = Printer(as_json=as_json, run=found.record.id)
    losses = Losses(found.place.name, found.record.id, printer.note)
    state = None
    try:
        state = _show_all(found, printer, losses)
        bring_here(found, state, losses, printer)
    except KeyboardInterrupt:
        printer.end_line()  # a terminal shows ^C
        if state is None:
            then = f"{called(found, 'attach')} comes back to it, {called(found, 'down')} ends it."
            printer.note(f"detached from {found.record.id}, which goes on. {then}")
        else:
            printer.note(f"{found.record.id} has ended; {called(found, 'result')} fetches the rest of its results.")
        return INTERRUPTED
    finally:
        found.place.close()
    if as_json:
        printer.event("end", status=state.status, ended=state.ended, reason=state.reason)
    else:
        _tell_end(found, state, printer)
    return state.status or 0


def _show_all(found: FoundRun, printer: Printer, losses: Losses) -> RunState:
    entries = follow(found.place, found.record.id, "output", losses)
    while True:
        try:
            entry = next(entries)
        except StopIteration as end:
            state: RunState = end.value
            break
        if entry.follows_gap:
            printer.note(_GONE)
        printer.entry(entry.fields)
    if state.phase == "killed":
        raise ProviderError(f"Run {found.record.id} {_KILLED}. What it printed until then is above.")
    return state


def _tell_end(found: FoundRun, state: RunState, printer: Printer) -> None:
    took = "" if state.ended is None else f" after {duration_text(state.ended - found.record.started)}"
    status = "" if state.status is None else f" with status {state.status}"
    why = f": {state.reason}" if state.reason else ""
    printer.note(f"{found.record.id} ended{status}{took}{why}")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a run ended and what it saved, with the place to read that from.

    Attributes:
        found: the run.
        state: its state.
        place: where values and files are read: this machine's copy, or the run's own host.
        values: what it saved with sky.save.
        files: those of its output directory.
        losses: of the connection to the place.
    """

    found: FoundRun
    state: RunState
    place: RunPlace
    values: Sequence[FileFacts]
    files: Sequence[FileFacts]
    losses: Losses

    @property
    def run(self) -> str:
        return self.found.record.id

    def beginning(self, value: FileFacts) -> bytes:
        return self.losses.outlast(lambda: self.place.read(self._path(value), 0, 1024)) or b""

    def whole(self, value: FileFacts) -> bytes:
        data = b""
        while more := self.losses.outlast(lambda: self.place.read(self._path(value), len(data))):  # noqa: B023 - asked at once
            data += more
        return data

    def _path(self, value: FileFacts) -> str:
        return f"{self.run}/saved/{value.path}"


@click.command()
@click.argument("run")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Put values and files there.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@host_options
def result(run: str, into: Path | None, as_json: bool, hosts: Sequence[SshHost]) -> int:
    """Show how a run ended, and the values and files it kept.

    Values are those of sky.save, files those in its output folder. Of a run that has ended on another machine
    everything is fetched first, so that it stays available when that machine is gone. With --into values go to
    DIR/saved and files to DIR/files.
    """
    found = find_run(run, hosts)
    record, printer = found.record, Printer(as_json=as_json, run=found.record.id)
    losses = Losses(found.place.name, record.id, printer.note)
    with closing(found.place):
        state = losses.outlast(lambda: found.place.state(record.id))
        place = bring_here(found, state, losses, printer)
        values = [each for each in losses.outlast(lambda: place.files(f"{record.id}/saved")) if _suffix(each)]
        files = losses.outlast(lambda: place.files(f"{record.id}/files"))
        outcome = _Outcome(found, state, place, values, files, losses)
        (_say_json if as_json else _say)(outcome, printer)
        if into is not None:
            _fetch(outcome, into)
            if as_json:
                printer.event("fetched", path=str(into))
            else:
                printer.note(f"values and files are in {into}" if values or files else "nothing was fetched")
    return 0


def bring_here(found: FoundRun, state: RunState, losses: Losses, printer: Printer) -> RunPlace:
    """Fetch the results of an ended run from another machine, if this one knows the run; return where to read them."""
    if found.place.is_here or not found.is_known_here or state.phase != "ended":
        return found.place
    total = size_there(found.place, found.record.id, losses)
    with transfer(f"fetching results of {found.record.id}", total) as count:
        place = collect(found.place, found.facts, losses, count)
    if found.record.rented is not None:
        give_back(found.record, found.record.rented, printer)
    return place


def give_back(record: RunRecord, rented: Rental, printer: Printer) -> None:
    """End the machines that were rented for a run whose results are here; if that fails, they end themselves."""
    from skyward.runs.on_machines import end_rented

    try:
        end_rented(rented)
    except SkywardError as error:
        printer.note(f"the machines of {record.id} end by themselves, since they could not be ended from here: {error}")
    else:
        printer.note(f"the machines of {record.id} at {rented.provider} are given back")


def _suffix(value: FileFacts) -> str:
    """Return the suffix of a saved value; "" for an unfinished one."""
    suffix = PurePosixPath(value.path).suffix
    return suffix if suffix in SUFFIXES and not value.path.startswith(".") else ""


def _fetch(outcome: _Outcome, into: Path) -> None:
    total = sum(each.size for each in (*outcome.values, *outcome.files))
    with transfer(f"fetching results of {outcome.run}", total) as count:
        for folder in ("saved", "files"):
            fetch(outcome.place, f"{outcome.run}/{folder}", into / folder, outcome.losses, count)


def _say_json(outcome: _Outcome, printer: Printer) -> None:
    state = outcome.state
    printer.event("state", phase=state.phase, status=state.status, ended=state.ended, reason=state.reason)
    for each in outcome.values:
        name, kind = PurePosixPath(each.path).stem, _suffix(each).removeprefix(".")
        known = {"value": _json_value(outcome.whole(each))} if kind == "json" else {}
        printer.event("value", name=name, kind=kind, size=each.size, **known)
    for each in outcome.files:
        printer.event("file", path=each.path, size=each.size)


def _say(outcome: _Outcome, printer: Printer) -> None:
    state = outcome.state
    about = {
        "running": f"still runs; {called(outcome.found, 'attach')} follows it. So far:",
        "ended": "ended" + ("" if state.status is None else f" with status {state.status}"),
        "killed": _KILLED,
    }
    printer.note(f"{outcome.run} {about[state.phase]}{f': {state.reason}' if state.reason else ''}")
    if damaged := outcome.found.facts.damaged:
        printer.note(f"its record has damaged lines ({damaged}), which were skipped")
    if not outcome.values and not outcome.files:
        printer.note("it has saved no values (sky.save) and no files (sky.output_folder)")
    if outcome.values:
        rows = [("VALUE", "SIZE", "")]
        for each in outcome.values:
            text = shown(_suffix(each), outcome.beginning(each))
            text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
            rows.append((PurePosixPath(each.path).stem, readable(each.size), text))
        show_table(rows)
    if outcome.files:
        show_table([("FILE", "SIZE"), *((each.path, readable(each.size)) for each in outcome.files)])


def _json_value(data: bytes) -> object:
    try:
        return json.loads(data, parse_constant=str)
    except ValueError as error:
        raise ProviderError(
            f"A saved value is not JSON: {error}. The disk of its machine may have been full."
        ) from error
