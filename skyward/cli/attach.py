"""`skyward attach`: the output of a run, so far and from now on, until it ends or Ctrl-C.

With `--json` standard output has one object per line and nothing else; each has `event` and `run`:

- `output`: `t` (seconds since 1970), `stream` ("out", "err"), `text`.
- `end`: `status` (null where it told none), `ended`, `reason`.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from skyward.cli.result import bring_here
from skyward.cli.runs import Printer, called, duration_text, host_options
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.runs.find import FoundRun, find_run
from skyward.runs.follow import Losses, follow
from skyward.runs.place import RunState

INTERRUPTED = 130


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, one object per line.")
@host_options
def command(run: str, as_json: bool, hosts: Sequence[SshHost]) -> int:
    """Show the output of a run, from its start until it ends.

    It is shown as it comes. Ctrl-C detaches: the run goes on. A connection that is cut is made again, and goes on
    where it was. The exit status is that of the program; 6 if its machine is lost, or if it was killed.
    """
    found = find_run(run, hosts)
    printer = Printer(as_json=as_json, run=found.record.id)
    losses = Losses(found.place.name, found.record.id, printer.note)
    state = None
    try:
        state = _show(found, printer, losses)
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
    return exit_status(state)


def _show(found: FoundRun, printer: Printer, losses: Losses) -> RunState:
    entries = follow(found.place, found.record, "output", losses)
    while True:
        try:
            entry = next(entries)
        except StopIteration as end:
            state: RunState = end.value
            break
        if entry.skipped:
            printer.note(f"{entry.skipped} bytes of older output were removed from its journal.")
        printer.entry(entry.fields)
    if state.phase == "killed":
        raise ProviderError(
            f"Run {found.record.id} is gone from {found.place.name} and has not said how it ended: it was killed, or "
            "the machine was started anew. What it printed until then is above."
        )
    return state


def _tell_end(found: FoundRun, state: RunState, printer: Printer) -> None:
    took = "" if state.ended is None else f" after {duration_text(state.ended - found.record.started)}"
    status = "" if state.status is None else f" with status {state.status}"
    why = f": {state.reason}" if state.reason else ""
    printer.note(f"{found.record.id} ended{status}{took}{why}")


def exit_status(state: RunState) -> int:
    """The exit status of a command that stands for the run: the program's, 128 + n where signal n ended it."""
    status = state.status or 0
    return 128 - status if status < 0 else status
