"""The driver of a run: the process that runs its program and keeps its record.

In the foreground `skyward run` is the driver itself. A detached run's is a process of its own session, or the first
process of a container: `python -m skyward.runs.driver FOLDER`. It says on standard output, in one line, that the
program runs; whatever goes wrong before is a line on standard error and the exit status.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from skyward.errors import ConfigError, SkywardError
from skyward.nodes.process_id import ProcessId
from skyward.records.journal import JournalWriter
from skyward.records.run import FOLDER_VARIABLE, RunRecord, write_json
from skyward.runs.program import Ended, block_signals, run_program
from skyward.ssh.handed import KEY_FILE, KNOWN_HOSTS_FILE, read_handed

STARTED = "started"
CACHE_FOLDER, HOME_FOLDER = "cache", "home"  # in the run's directory, while it runs in a container
PROGRAM_FOLDER = "program"  # in the run's directory, if the program was packed
OUTPUT_LIMIT = 1 << 30  # bytes of a program's output that are kept; the oldest goes first
_LAUNCH_FILE = "launch.json"
_VARIABLES_FILE = "variables.json"


def drive(
    folder: Path,
    record: RunRecord,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path | None = None,
    foreground: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a program to its end, with its record in a directory.

    Args:
        folder: the run's directory.
        record: of the run; it is written here, with this process in it where it is not in a container.
        command: the program with its arguments.
        environment: its variables; the run's own are added.
        directory: that it runs in; None for this process's.
        foreground: see `run_program`.
        on_start: called once the program runs.

    Raises:
        ConfigError: the program cannot be started. The record says so as well.
    """
    if record.container is None:
        record = replace(record, pid=os.getpid(), process=ProcessId.of(os.getpid()).text)
    record.write(folder)
    journal = JournalWriter(folder / "output", limit=OUTPUT_LIMIT)
    try:
        ended = run_program(
            command,
            journal,
            directory=directory,
            environment={**environment, FOLDER_VARIABLE: str(folder)},
            foreground=foreground,
            on_start=on_start,
        )
    except ConfigError as error:
        _note_end(folder, Ended(127, str(error)))
        raise
    finally:
        journal.close()
    _note_end(folder, ended)
    return ended


def write_launch(folder: Path, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    """Leave a driver what it starts.

    Args:
        folder: of the run.
        words: what follows `python`.
        variables: further environment variables of the program. They may be secrets: their file is removed as soon as
            the driver has read it.
    """
    write_json(folder / _LAUNCH_FILE, {"words": list(words)})
    if variables:
        with open(os.open(folder / _VARIABLES_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dict(variables), file)


def _take_variables(folder: Path) -> dict[str, str]:
    path = folder / _VARIABLES_FILE
    if not path.exists():
        return {}
    found: dict[str, str] = json.loads(path.read_text())
    path.unlink()
    return found


def _note_end(folder: Path, ended: Ended) -> None:
    write_json(folder / "end.json", {"status": ended.status, "ended": round(time.time(), 3), "reason": ended.reason})


def main(folder: Path) -> int:
    """Drive the run of a directory that `write_launch` and the run's record have prepared."""
    record = RunRecord.parse((folder / "run.json").read_bytes())
    try:
        if hosts := list(read_handed(folder).values()):
            from skyward.runs.keys import held_keys

            block_signals()
            with held_keys(hosts, record):
                return _drive_packed(folder, record)
        return _drive_packed(folder, record)
    except SkywardError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        for name in (KEY_FILE, KNOWN_HOSTS_FILE, _VARIABLES_FILE):  # nobody can use them any more, or is to
            (folder / name).unlink(missing_ok=True)
        rmtree(folder / CACHE_FOLDER, ignore_errors=True)
        with suppress(OSError):  # the program has left something there, which stays
            (folder / HOME_FOLDER).rmdir()


def _drive_packed(folder: Path, record: RunRecord) -> int:
    command = [sys.executable, *json.loads((folder / _LAUNCH_FILE).read_text())["words"]]
    # who follows a run sees each line when it is printed, and loses none when the program is killed
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **_take_variables(folder)}
    if record.container is not None:
        (folder / HOME_FOLDER).mkdir(mode=0o700)
    packed = folder / PROGRAM_FOLDER
    directory = packed if packed.is_dir() else Path(record.directory)
    return drive(folder, record, command, environment=environment, directory=directory, on_start=_confirm).status


def _confirm() -> None:
    os.write(1, f"{STARTED}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # who has started us need not live, nor read
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
