"""Starts the driver of a detached run as a container of the first of the machines that its pools are on."""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from skyward.builder.events import Report, note
from skyward.delivery.prepared import Prepared, write_prepared
from skyward.errors import SkywardError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.nodes.ssh_host import Machine
from skyward.records.run import RunRecord
from skyward.runs.container import driver_container, start_driver
from skyward.runs.driver import PROGRAM_FOLDER, write_launch
from skyward.runs.keys import add_key, line_of, make_key, remove_key, run_script
from skyward.runs.pack import Pack
from skyward.ssh.handed import KNOWN_HOSTS_FILE, write_handed

# What the host is asked before: the addresses that it may be seen with, and the group that may use its engine.
_LOOK = r"""
echo "$(hostname -I 2>/dev/null || true)"
stat -c %g "$1"
"""
_PLACE = r"""
umask 077
runs=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs
mkdir -p "$runs" && mkdir "$runs/$1" && tar -xf - -C "$runs/$1" && cd "$runs/$1" && pwd -P
"""
_DROP = r"""
rm -rf "${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs/$1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a driver gets.

    Attributes:
        record: of the run, as the driver's host has it.
        files: the program.
        variables: environment variables of the program; they may be secrets.
        images: those that were delivered to its hosts, by their descriptions.
        driver: tag of the driver's image.
        hosts: where its hosts reach each other, by the names that the program has for them; the driver's first.
        known: lines of a known_hosts file for these.
    """

    record: RunRecord
    files: Pack
    variables: Mapping[str, str] = field(repr=False)
    images: Mapping[str, Prepared]
    driver: str
    hosts: Mapping[str, SshHost]
    known: Sequence[str]


def start_there(machines: Sequence[Machine], given: Given, report: Report) -> None:
    """Have the machines accept the run's key, put the run's directory on the first, and start the driver there.

    Args:
        machines: in the order of `given.hosts`.
        given: to the driver.
        report: receives progress.

    Raises:
        EngineError: the engine there refuses.
        ProviderError: a machine cannot be used, or the driver ended before the program ran; nothing is left there.
    """
    first, run_id = machines[0], given.record.id
    with ExitStack() as undo:
        with private_directory() as base:
            folder = base / "run"
            _write(folder, given)
            public = make_key(folder, run_id)
            seen, group = _look(first, next(iter(given.hosts.values())))
            for machine in machines:
                undo.callback(_quietly, partial(remove_key, machine.connection.through, run_id))
                add_key(machine.connection.through, run_id, line_of(public, seen))
            undo.callback(_quietly, partial(run_script, first.connection.through, _DROP, run_id))
            there = run_script(first.connection.through, _PLACE, run_id, given=_archive(folder))
        report(note(f"starting the driver on {first.name}"))
        there_folder, socket_there = Path(there.strip().splitlines()[-1]), Path(first.facts.socket)
        user = f"{first.facts.user[0]}:{first.facts.user[1] if first.facts.user[0] == 0 else group}"
        spec = driver_container(given.record, there_folder, given.driver, socket_there, (), {}, user)
        start_driver(first.engine, spec, given.record)
        undo.pop_all()


def _write(folder: Path, given: Given) -> None:
    given.record.write(folder)
    given.files.write(folder / PROGRAM_FOLDER)
    write_launch(folder, given.files.words, given.variables)
    write_prepared(folder, given.images)
    write_handed(folder, given.hosts)
    (folder / KNOWN_HOSTS_FILE).write_text("".join(f"{line}\n" for line in given.known))


def _look(machine: Machine, address: SshHost) -> tuple[list[str], str]:
    """The addresses that connections from a machine may come from, and the number of its engine's group."""
    said = run_script(machine.connection.through, _LOOK, machine.facts.socket).splitlines()
    seen = ["127.0.0.1", "::1", machine.address, *said[0].split()]
    with suppress(OSError):  # a name that only the hosts resolve
        seen += [str(found[4][0]) for found in socket.getaddrinfo(address.host, None)]
    return list(dict.fromkeys(seen)), said[-1].strip()


def _archive(folder: Path) -> bytes:
    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0  # where root unpacks it, the files are root's
        info.uname = info.gname = ""
        return info

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(folder, ".", filter=owned)
    return data.getvalue()


def _quietly(action: Callable[[], object]) -> None:
    """Undo a step, though another undo has failed: the error that led here is the one to show."""
    with suppress(SkywardError):
        action()
