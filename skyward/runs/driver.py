"""A run to be launched, and its driver: the process that runs its program and writes its record.

In the foreground `skyward run` is the driver itself. For a detached run it is a process in a separate session, or the
first process of a container: `python -m skyward.runs.driver FOLDER`. It confirms in one line on standard output that
the program runs; an earlier failure is reported in a line on standard error and by the exit status.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from skyward.errors import ConfigError, SkywardError
from skyward.nodes.process_id import current_user
from skyward.records.run import (
    DOWN_FILE,
    ENDED_BY_DOWN,
    FOLDER_VARIABLE,
    MODULE,
    RunRecord,
    folder_of,
    hold,
    new_id,
    note,
    write_json,
)
from skyward.runs.program import Ended, run_program

STARTED = "started"
CACHE_FOLDER, HOME_FOLDER = "cache", "home"  # in the run's directory, while it runs in a container
PROGRAM_FOLDER = "program"  # in the run's directory, if the program was packed
_LAUNCH_FILE = "launch.json"
_VARIABLES_FILE = "variables.json"
# files of handed-over hosts and keys; skyward.ssh, which defines the names, is loaded only if there are any
HANDED = ("hosts.json", "key", "known_hosts")


def new_run(program: str, arguments: Sequence[str], *, is_module: bool = False, name: str | None = None) -> RunRecord:
    """Return the record of a run of a program that starts now in this process's working directory.

    Raises:
        ConfigError: there is no such program, or a run of that name exists.
    """
    _check(program, is_module)
    fresh = (each for each in iter(partial(new_id, program.rpartition(".")[2] if is_module else program), ""))
    run_id = next(each for each in fresh if not folder_of(each).exists()) if name is None else name
    if folder_of(run_id).exists():
        raise ConfigError(
            f"There is a run {run_id!r} already: see `skyward ps --all`. Choose another name, or leave --name out."
        )
    return RunRecord(
        id=run_id,
        program=f"{MODULE}{program}" if is_module else program,
        arguments=list(arguments),
        started=round(time.time(), 3),
        directory=str(Path.cwd()),
        user=current_user(),
    )


def run_here(record: RunRecord) -> int:
    """Run it in the foreground; return its exit status.

    Raises:
        ConfigError: it cannot be started.
    """
    folder, command = folder_of(record.id), [sys.executable, *record.words]
    return drive(folder, record, command, environment=os.environ, foreground=True).status


def _check(program: str, is_module: bool) -> None:
    if is_module:
        sys.path.insert(0, str(Path.cwd()))  # where python -m looks first
        try:
            found = find_spec(program.partition(".")[0])  # finding a submodule would run the package
        except (ImportError, ValueError):
            found = None
        finally:
            sys.path.pop(0)
        if found is None:
            raise ConfigError(f"There is no module {program!r} here: it is neither in {Path.cwd()} nor installed.")
    elif not Path(program).exists():
        raise ConfigError(f"There is no program {program!r} in {Path.cwd()}.")


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
        record: of the run, which is written here.
        command: the program with its arguments.
        environment: its variables; those of the run are added.
        directory: that it runs in; None for this process's.
        foreground: see `run_program`.
        on_start: called once the program runs.

    Raises:
        ConfigError: the program cannot be started. This is also recorded.
    """
    hold(folder)
    record.write(folder)
    try:
        ended = run_program(
            command,
            folder,
            directory=directory,
            environment={**environment, FOLDER_VARIABLE: str(folder)},
            foreground=foreground,
            on_start=on_start,
        )
    except ConfigError as error:
        note(folder, "ended", status=127, reason=str(error))
        raise
    reason = ended.reason
    if (folder / DOWN_FILE).exists():
        by_signal = reason is None or reason.startswith("ended by SIG")  # a signal sent by `skyward down`
        reason = ENDED_BY_DOWN if by_signal else f"{ENDED_BY_DOWN}; {reason}"
    note(folder, "ended", status=ended.status, reason=reason)
    return ended


def write_launch(
    folder: Path, record: RunRecord, words: Sequence[str], variables: Mapping[str, str] | None = None
) -> None:
    """Write the files that tell a driver what to start.

    Args:
        folder: of the run; it is created.
        record: of the run.
        words: the arguments of `python`.
        variables: further environment variables of the program. They may be secrets: the driver deletes their file as
            soon as it has read it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(folder / _LAUNCH_FILE, {"words": list(words), "record": asdict(record)})
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


def main(folder: Path) -> int:
    """Drive the run in a directory that was prepared with `write_launch`."""
    launch = json.loads((folder / _LAUNCH_FILE).read_text())
    record, words = RunRecord.of(launch["record"]), launch["words"]
    try:
        if (folder / HANDED[0]).is_file():
            from skyward.runs.keys import held_keys
            from skyward.ssh.connection import read_handed

            with held_keys(list(read_handed(folder).values()), record):
                return _drive_packed(folder, record, words)
        return _drive_packed(folder, record, words)
    except SkywardError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        for name in (*HANDED[1:], _VARIABLES_FILE):  # no longer usable, or not meant to be used again
            (folder / name).unlink(missing_ok=True)
        rmtree(folder / CACHE_FOLDER, ignore_errors=True)
        with suppress(OSError):  # not empty: the program has written files there, which stay
            (folder / HOME_FOLDER).rmdir()


def _drive_packed(folder: Path, record: RunRecord, words: Sequence[str]) -> int:
    command = [sys.executable, *words]
    # followers of a run see each line when it is printed, and none is lost if the program is killed
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **_take_variables(folder)}
    if record.container is not None:
        (folder / HOME_FOLDER).mkdir(mode=0o700)
    packed = folder / PROGRAM_FOLDER
    directory = packed if packed.is_dir() else Path(record.directory)
    return drive(folder, record, command, environment=environment, directory=directory, on_start=_confirm).status


def _confirm() -> None:
    os.write(1, f"{STARTED}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # the process that started this one need not stay alive or read
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
