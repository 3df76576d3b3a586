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
- `written`: the same, for files that the program has written in its directory on another machine.
- `fetched`: `path`, the directory of `--into`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from skyward.builder.events import readable
from skyward.cli.main import INTERRUPTED
from skyward.cli.output import Row, show_rows
from skyward.cli.runs import Printer, called, duration_text, host_options, seconds_of
from skyward.errors import ConfigError, ProviderError, RunNotFoundError, SkywardError
from skyward.model.ssh import SshHost
from skyward.records import journal
from skyward.records.pools import runs_of_pool
from skyward.records.run import WRITTEN_FOLDER, Rental, RunFacts
from skyward.runs.find import Run, find_run
from skyward.runs.follow import collect, follow
from skyward.runs.saved import SUFFIXES
from skyward.runs.there import FOLDERS

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
                found.refresh("output")
                of_nodes = nodes or bool(wanted) or not (found.folder / "output").is_dir()
                printer = Printer(as_json=as_json, run=found.name)
                entries = _entries(found, "nodes" if of_nodes else "output", printer, goes_on=goes_on)
                printed = (each for each in entries if each.get("t", begin) >= begin and wanted.items() <= each.items())
                for entry in _lines(printed) if of_nodes and not as_json else printed:
                    printer.entry(entry)
                _say_state(found, printer, goes_on=goes_on)
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


def _entries(run: Run, name: str, printer: Printer, *, goes_on: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of a journal, until the run ends or what there is now."""
    if goes_on:
        run.outlast(printer.note)
    else:
        run.refresh(name)
    for entry in follow(run, name) if goes_on else journal.entries(run.folder / name):
        if entry.follows_gap:
            printer.note("older output is gone: a full record keeps the newest")
        yield entry.fields


def _lines(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the output of nodes line by line, joining pieces that the same call printed to the same stream."""
    begun = dict[tuple[Any, ...], Mapping[str, Any]]()
    for entry in entries:
        key = tuple(entry.get(name) for name in ("pool", "rank", "call", "stream"))
        text = begun.pop(key, {"text": ""})["text"] + str(entry.get("text", ""))
        *whole, rest = text.split("\n")
        for line in whole:
            yield {**entry, "text": f"[{entry.get('rank', '?')}] {line}\n"}
        if rest:
            begun[key] = {**entry, "text": rest}
    for entry in begun.values():
        yield {**entry, "text": f"[{entry.get('rank', '?')}] {entry['text']}\n"}


def _say_state(run: Run, printer: Printer, *, goes_on: bool) -> None:
    """Note that the output of a run may be incomplete."""
    if run.facts.phase == "killed":
        printer.note(f"{run.name} {_KILLED}.")
    elif not run.facts.is_final and not goes_on:
        printer.note(f"{run.name} still runs; {called(run, 'logs -f')} goes on.")


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
        printer, has_ended = Printer(as_json=as_json, run=found.name), False
        try:
            for entry in _entries(found, "output", printer, goes_on=True):
                printer.entry(entry)
            facts, has_ended = found.facts, True
            if facts.phase == "killed":
                raise ProviderError(f"Run {found.name} {_KILLED}. What it printed until then is above.")
            bring_here(found, printer)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                click.echo(err=True)  # a terminal shows ^C
            if has_ended:
                printer.note(f"{found.name} has ended; {called(found, 'result')} fetches the rest of its results.")
            else:
                then = f"{called(found, 'attach')} comes back to it, {called(found, 'down')} ends it."
                printer.note(f"detached from {found.name}, which goes on. {then}")
            return INTERRUPTED
    about: dict[str, Any] = {"status": facts.status, "ended": facts.ended, "reason": facts.reason or None}
    printer.event("end", f"skyward: {found.name} {_end_text(facts)}", **about)
    return facts.status or 0


def _end_text(facts: RunFacts) -> str:
    status = "" if facts.status is None else f" with status {facts.status}"
    took = "" if facts.ended is None else f" after {duration_text(facts.ended - facts.record.started)}"
    return f"ended{status}{took}{f': {facts.reason}' if facts.reason else ''}"


@click.command()
@click.argument("run")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Put values and files there.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@host_options
def result(run: str, into: Path | None, as_json: bool, hosts: Sequence[SshHost]) -> int:
    """Show how a run ended, and the values and files it kept.

    Values are those of sky.save, files those in its output folder. Of a run that has ended on another machine
    everything is fetched first, also what it has written in its own directory there, so that it stays available when
    that machine is gone. With --into values go to DIR/saved, files to DIR/files, the others to DIR/written.
    """
    with closing(find_run(run, hosts)) as found:
        printer = Printer(as_json=as_json, run=found.name)
        found.outlast(printer.note)
        bring_here(found, printer)
        if found.there is not None:
            found.refresh(*FOLDERS)
        values, files, written = (_files_in(found.folder / name) for name in FOLDERS)
        values = [each for each in values if each.suffix in SUFFIXES and not each.name.startswith(".")]
        facts = found.facts
        states = {"running": f"still runs; {called(found, 'attach')} follows it. So far:", "killed": _KILLED}
        text = f"skyward: {found.name} {states.get(facts.phase) or _end_text(facts)}"
        about = {"status": facts.status, "ended": facts.ended, "reason": facts.reason or None}
        printer.event("state", text, phase=facts.phase, **about)
        shown = ((values, _value, _VALUES), (files, _file, _FILES), (written, _written, _WRITTEN))
        for paths, row_of, columns in shown:
            if paths:
                rows = [
                    {**row_of(path, found.folder), "run": found.name, "size": path.stat().st_size} for path in paths
                ]
                show_rows(rows, columns, as_json=as_json)
        if not (values or files or written or as_json):
            printer.note("it has saved no values (sky.save) and no files (sky.output_folder)")
        if into is not None:
            for path in (*values, *files, *written):
                target = into / path.relative_to(found.folder)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copy2(path, target)
            text = f"values and files are in {into}" if values or files or written else "nothing was fetched"
            printer.event("fetched", f"skyward: {text}", path=str(into))
    return 0


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def bring_here(run: Run, printer: Printer) -> None:
    """Fetch the results of an ended run from another machine, if this one knows the run."""
    if run.there is None or not run.is_known_here or run.facts.phase != "ended":
        return
    printer.note(f"fetching what is left of {run.name} from {run.where}")
    collect(run)
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


def _value(path: Path, _: Path) -> Row:
    kind = path.suffix.removeprefix(".")
    value = {"value": json.loads(path.read_bytes(), parse_constant=str)} if kind == "json" else {}
    return {"event": "value", "name": path.stem, "kind": kind, **value}


def _file(path: Path, folder: Path) -> Row:
    return {"event": "file", "path": path.relative_to(folder / "files").as_posix()}


def _written(path: Path, folder: Path) -> Row:
    return {"event": "written", "path": path.relative_to(folder / WRITTEN_FOLDER).as_posix()}


def _shown(value: Row) -> str:
    if value["kind"] != "json":
        return "array" if value["kind"] == "npy" else "bytes"
    text = json.dumps(value["value"], ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


_SIZE: dict[str, Callable[[Row], str]] = {"SIZE": lambda row: readable(row["size"])}
_VALUES = {"VALUE": lambda row: str(row["name"]), **_SIZE, "": _shown}
_FILES = {"FILE": lambda row: str(row["path"]), **_SIZE}
_WRITTEN = {"WRITTEN": lambda row: str(row["path"]), **_SIZE}
