"""The runs that `skyward down` ends: each in order where it does so in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skyward.cli.result import bring_here, give_back
from skyward.cli.runs import Printer
from skyward.errors import HostLostError, SkywardError
from skyward.model.ssh import SshHost
from skyward.records.pools import POOLS
from skyward.runs.find import FoundRun, find_exactly
from skyward.runs.follow import Losses
from skyward.runs.keys import remove_key
from skyward.runs.listing import ListedRun, list_runs
from skyward.runs.ssh_runs import SshRuns
from skyward.runs.stop import GRACE_S, stop
from skyward.runs.this_machine import ThisMachine

Fail = Callable[[str, str, SkywardError], None]  # what could not be done, to which run, and why


def end_runs(names: Sequence[str], hosts: Sequence[SshHost], *, as_json: bool, fail: Fail) -> list[str]:
    """End those of these names that are runs; the pools that are left to end: all other names, and the pools that ended
    runs had, which are there if a program could not end them itself.

    Args:
        names: of runs and pools.
        hosts: machines on which runs may be, beside those that records of this machine name.
        as_json: print objects of JSON.
        fail: is told what could not be done.
    """
    pools = []
    for name in names:
        try:
            found = find_exactly(name) or _on_hosts(name, hosts)
            if found is None:
                pools.append(name)
            else:
                pools += _end(found, Printer(as_json=as_json, run=name), as_json=as_json)
        except HostLostError as error:
            if not _end_unheard(name, Printer(as_json=as_json, run=name), as_json=as_json):
                fail(f"run {name} could not be ended", name, error)
        except SkywardError as error:
            fail(f"run {name} could not be ended", name, error)
    return pools


def detached_runs(hosts: Sequence[SshHost], user: str | None) -> list[ListedRun]:
    """The detached runs that go on, here, where records of this machine point to, and on these machines.

    One whose machine does not answer can be ended where its machines are rented.

    Args:
        hosts: machines to look at.
        user: who has started them, as "name@host"; None for anybody.
    """
    found = (run for run in list_runs(hosts).runs if run.record.detached and user in (None, run.record.user))
    return [run for run in found if run.state.phase == "running" or run.record.rented is not None]


def names_of_runs() -> list[str]:
    """The runs that this machine has a record of."""
    return [record.id for record in ThisMachine().records()]


def _end_unheard(name: str, printer: Printer, *, as_json: bool) -> bool:
    """End the rented machines of a run whose driver's machine does not answer; whether it has such machines."""
    here = ThisMachine()
    record = here.record(name)
    if record is None or record.rented is None:
        return False
    from skyward.runs.on_rented import end_rented

    end_rented(record.rented)
    here.mark_collected(record)
    if as_json:
        printer.event("ended", where=record.place, state="killed", status=None)
    else:
        printer.line(f"run {name} ended at {record.place}, which did not answer: its machines are given back")
    return True


def _on_hosts(name: str, hosts: Sequence[SshHost]) -> FoundRun | None:
    """The run, if one of these machines has it. A name may be a pool's: who looks for that tells of lost machines."""
    for host in hosts:
        try:
            found = find_exactly(name, [host])
        except HostLostError:
            continue
        if found is not None:
            return found
    return None


def _end(found: FoundRun, printer: Printer, *, as_json: bool) -> list[str]:
    """End a run; the pools that it had."""
    try:
        return _ended(found, printer, as_json=as_json)
    finally:
        found.place.close()


def _ended(found: FoundRun, printer: Printer, *, as_json: bool) -> list[str]:
    record, place = found.record, found.place
    losses = Losses(place.name, record.id, printer.note)
    before = losses.outlast(lambda: place.state(record))
    if not before.is_final and not as_json:
        printer.note(f"asking {record.id} to end; it has {GRACE_S:g} s to end its pools")
    state = stop(place, record, losses)
    if state.phase == "killed" and found.is_known_here and isinstance(place, SshRuns):
        remove_key(place.host, record.id)  # its driver could not
    if as_json:
        printer.event("ended", where=place.name, state=state.phase, status=state.status)
    elif before.is_final:
        printer.line(f"run {record.id} had ended before at {place.name} ({state.text})")
    else:
        printer.line(f"run {record.id} ended at {place.name}{' (killed)' if state.phase == 'killed' else ''}")
    if record.rented is not None and found.is_known_here:
        bring_here(found, state, losses, printer)
        if state.phase == "killed":
            give_back(record, record.rented, printer)
            ThisMachine().mark_collected(record)
        return []
    return [facts.path for facts in losses.outlast(lambda: place.files(f"{record.id}/{POOLS}"))]
