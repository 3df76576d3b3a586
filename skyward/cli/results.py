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
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
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
from skyward.records.run import Rental, RunFacts
from skyward.runs.find import Run, find_run
from skyward.runs.follow import Losses, collect, follow
from skyward.runs.saved import SUFFIXES, shown
from skyward.runs.there import FOLDERS

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
    known = set[Any]()
    try:
        for found in runs:
            with closing(found):
                _show(found, wanted, begin, nodes=nodes, goes_on=goes_on, as_json=as_json)
                ready = [each for each in found.facts.events if each.get("event") == "node_ready"]
                known |= {each["node"] for each in ready if pool in (None, each["pool"])}
    except KeyboardInterrupt:
        if not goes_on:
            raise
        return INTERRUPTED
    if node is not None and node not in known:
        there = f"its nodes are {', '.join(map(str, sorted(known)))}" if known else "it has had no nodes"
        raise ConfigError(f"{f'Pool {pool}' if pool else f'Run {run}'} has no node {node}: {there}.")
    return 0


def _show(run: Run, wanted: Mapping[str, Any], begin: float, *, nodes: bool, goes_on: bool, as_json: bool) -> None:
    """Print the output of a run."""
    printer = Printer(as_json=as_json, run=run.name)
    lines = Lines(printer)
    run.refresh("output")
    of_nodes = nodes or bool(wanted) or not (run.folder / "output").is_dir()
    try:
        for entry in _entries(run, "nodes" if of_nodes else "output", printer, goes_on=goes_on):
            fields = entry.fields
            if entry.follows_gap:
                printer.note(_GONE)
            if fields.get("t", begin) >= begin and all(fields.get(name) == value for name, value in wanted.items()):
                (lines if of_nodes and not as_json else printer).entry(fields)
    finally:
        lines.finish()


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


def _find(name: str, pool: str | None, hosts: Sequence[SshHost]) -> tuple[Iterable[Run], str | None]:
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
        had = None if found.name == name else runs_of_pool(name, exactly=True)
        if had is None:
            return [found], pool
        found.close()
    only, runs = had
    return map(find_run, runs), only


def _entries(run: Run, name: str, printer: Printer, *, goes_on: bool) -> Iterator[Entry]:
    if goes_on:
        facts = yield from follow(run, name, Losses(run, printer.note))
    else:
        run.refresh(name)
        yield from journal.entries(run.folder / name)
        facts = run.facts
    if facts.phase == "killed":
        printer.note(f"{run.name} {_KILLED}.")
    elif not facts.is_final and not goes_on:
        printer.note(f"{run.name} still runs; {called(run, 'logs -f')} goes on.")


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
    with closing(find_run(run, hosts)) as found:
        printer = Printer(as_json=as_json, run=found.name)
        losses = Losses(found, printer.note)
        facts = None
        try:
            facts = _show_all(found, printer, losses)
            bring_here(found, losses, printer)
        except KeyboardInterrupt:
            printer.end_line()  # a terminal shows ^C
            if facts is None:
                then = f"{called(found, 'attach')} comes back to it, {called(found, 'down')} ends it."
                printer.note(f"detached from {found.name}, which goes on. {then}")
            else:
                printer.note(f"{found.name} has ended; {called(found, 'result')} fetches the rest of its results.")
            return INTERRUPTED
    if as_json:
        printer.event("end", status=facts.status, ended=facts.ended, reason=facts.reason or None)
    else:
        took = "" if facts.ended is None else f" after {duration_text(facts.ended - facts.record.started)}"
        printer.note(f"{found.name} {_end_text(facts, took)}")
    return facts.status or 0


def _show_all(run: Run, printer: Printer, losses: Losses) -> RunFacts:
    entries = follow(run, "output", losses)
    while True:
        try:
            entry = next(entries)
        except StopIteration as end:
            facts: RunFacts = end.value
            break
        if entry.follows_gap:
            printer.note(_GONE)
        printer.entry(entry.fields)
    if facts.phase == "killed":
        raise ProviderError(f"Run {run.name} {_KILLED}. What it printed until then is above.")
    return facts


def _end_text(facts: RunFacts, took: str = "") -> str:
    status = "" if facts.status is None else f" with status {facts.status}"
    return f"ended{status}{took}{f': {facts.reason}' if facts.reason else ''}"


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
    with closing(find_run(run, hosts)) as found:
        printer = Printer(as_json=as_json, run=found.name)
        losses = Losses(found, printer.note)
        bring_here(found, losses, printer)
        if found.there is not None:
            losses.outlast(lambda: found.refresh(*FOLDERS))
        values, files = (_files_in(found.folder / name) for name in FOLDERS)
        values = [each for each in values if each.suffix in SUFFIXES and not each.name.startswith(".")]
        (_say_json if as_json else _say)(found, printer, values, files)
        if into is not None:
            for name, paths in zip(FOLDERS, (values, files), strict=True):
                for path in paths:
                    target = into / name / path.relative_to(found.folder / name)
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    shutil.copy2(path, target)
            if as_json:
                printer.event("fetched", path=str(into))
            else:
                printer.note(f"values and files are in {into}" if values or files else "nothing was fetched")
    return 0


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def bring_here(run: Run, losses: Losses, printer: Printer) -> None:
    """Fetch the results of an ended run from another machine, if this one knows the run."""
    if run.there is None or not run.is_known_here or run.facts.phase != "ended":
        return
    with transfer(f"fetching results of {run.name}") as count:
        collect(run, losses, count)
    if rented := run.facts.record.rented:
        give_back(run.name, rented, printer)


def give_back(run: str, rented: Rental, printer: Printer) -> None:
    """End the machines that were rented for a run whose results are here; if that fails, they end themselves."""
    from skyward.runs.on_machines import end_rented

    try:
        end_rented(rented)
    except SkywardError as error:
        printer.note(f"the machines of {run} end by themselves, since they could not be ended from here: {error}")
    else:
        printer.note(f"the machines of {run} at {rented.provider} are given back")


def _say_json(run: Run, printer: Printer, values: Sequence[Path], files: Sequence[Path]) -> None:
    facts = run.facts
    reason = facts.reason or None
    printer.event("state", phase=facts.phase, status=facts.status, ended=facts.ended, reason=reason)
    for each in values:
        kind = each.suffix.removeprefix(".")
        known = {"value": json.loads(each.read_bytes(), parse_constant=str)} if kind == "json" else {}
        printer.event("value", name=each.stem, kind=kind, size=each.stat().st_size, **known)
    for each in files:
        printer.event("file", path=each.relative_to(run.folder / "files").as_posix(), size=each.stat().st_size)


def _say(run: Run, printer: Printer, values: Sequence[Path], files: Sequence[Path]) -> None:
    facts = run.facts
    about = {"running": f"still runs; {called(run, 'attach')} follows it. So far:", "killed": _KILLED}
    printer.note(f"{run.name} {about.get(facts.phase) or _end_text(facts)}")
    if not values and not files:
        printer.note("it has saved no values (sky.save) and no files (sky.output_folder)")
    if values:
        rows = [("VALUE", "SIZE", "")]
        for each in values:
            text = shown(each)
            text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
            rows.append((each.stem, readable(each.stat().st_size), text))
        show_table(rows)
    if files:
        names = [each.relative_to(run.folder / "files").as_posix() for each in files]
        sizes = [readable(each.stat().st_size) for each in files]
        show_table([("FILE", "SIZE"), *zip(names, sizes, strict=True)])
