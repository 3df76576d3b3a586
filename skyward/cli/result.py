"""`skyward result`: how a run ended, the values it has saved, and the files in its output folder.

With `--json` standard output has one object per line and nothing else; each has `event` and `run`:

- `state`: `phase` ("running", "ended", "killed", "unknown"), `status`, `ended` (seconds since 1970), `reason`.
- `value`: `name`, `kind` ("json", "bin", "npy"), `size`, and `value` where `kind` is "json"; numbers that JSON does not
  have are the strings "NaN", "Infinity" and "-Infinity".
- `file`: `path`, `size`.
- `fetched`: `path`, the directory of `--into`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import click

from skyward.builder.events import readable
from skyward.cli.output import show_table
from skyward.cli.runs import Printer, called, fetching, host_options
from skyward.errors import ProviderError, SkywardError
from skyward.model.ssh import SshHost
from skyward.records.run import Rental, RunRecord
from skyward.runs.find import FoundRun, find_run
from skyward.runs.follow import Losses, collect, fetch, size_there
from skyward.runs.place import FileFacts, RunPlace, RunState
from skyward.runs.saved import SUFFIXES, shown

_SHOWN = 60  # characters of a value in the list


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a run ended and what it left, with the place where that is read.

    Attributes:
        found: the run.
        state: how far it is.
        place: where values and files are read: this machine's copy, or the run's own host.
        values: what it kept with sky.save.
        files: those of its output folder.
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
def command(run: str, into: Path | None, as_json: bool, hosts: Sequence[SshHost]) -> int:
    """Show how a run ended, and the values and files it kept.

    Values are those of sky.save, files those in its output folder. Of a run that has ended on another machine
    everything is fetched first, so that it can be had when that machine is gone. With --into values go to DIR/saved
    and files to DIR/files.
    """
    found = find_run(run, hosts)
    record, printer = found.record, Printer(as_json=as_json, run=found.record.id)
    losses = Losses(found.place.name, record.id, printer.note)
    try:
        state = losses.outlast(lambda: found.place.state(record))
        place = bring_here(found, state, losses, printer)
        values = tuple(each for each in _files(place, record, "saved", losses) if _suffix(each))
        outcome = _Outcome(found, state, place, values, _files(place, record, "files", losses), losses)
        (_say_json if as_json else _say)(outcome, printer)
        if into is not None:
            _fetch(outcome, into, printer)
            if as_json:
                printer.event("fetched", path=str(into))
            else:
                printer.note(f"values and files are in {into}" if values or outcome.files else "nothing was fetched")
    finally:
        found.place.close()
    return 0


def bring_here(found: FoundRun, state: RunState, losses: Losses, printer: Printer) -> RunPlace:
    """Fetch what an ended run has left on another machine, where this one knows the run; where it can be read now."""
    if found.place.is_here or not found.is_known_here or state.phase != "ended":
        return found.place
    total = size_there(found.place, found.record, losses)
    with fetching(f"fetching results of {found.record.id}", total, printer) as progress:
        place = collect(found.place, found.record, losses, progress)
    if found.record.rented is not None:
        give_back(found.record, found.record.rented, printer)
    return place


def give_back(record: RunRecord, rented: Rental, printer: Printer) -> None:
    """End the machines that were rented for a run whose results are here; where that fails they end by themselves."""
    from skyward.runs.on_machines import end_rented

    try:
        end_rented(rented)
    except SkywardError as error:
        printer.note(f"the machines of {record.id} end by themselves, since they could not be ended from here: {error}")
    else:
        printer.note(f"the machines of {record.id} at {rented.provider} are given back")


def _files(place: RunPlace, record: RunRecord, folder: str, losses: Losses) -> Sequence[FileFacts]:
    return losses.outlast(lambda: place.files(f"{record.id}/{folder}"))


def _suffix(value: FileFacts) -> str:
    """That of a saved value; "" for a draft of one."""
    suffix = PurePosixPath(value.path).suffix
    return suffix if suffix in SUFFIXES and not value.path.startswith(".") else ""


def _fetch(outcome: _Outcome, into: Path, printer: Printer) -> None:
    total = sum(each.size for each in (*outcome.values, *outcome.files))
    with fetching(f"fetching results of {outcome.run}", total, printer) as progress:
        for folder in ("saved", "files"):
            fetch(outcome.place, f"{outcome.run}/{folder}", into / folder, outcome.losses, progress)


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
        "killed": "was killed, and has not said how it ended",
        "unknown": "may still run; nobody can be asked about it",
    }
    printer.note(f"{outcome.run} {about[state.phase]}{f': {state.reason}' if state.reason else ''}")
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
