"""A run to be launched, and its driver: the process that runs its program and writes its record.

In the foreground `skyward run` is the driver itself. For a detached run it is a process in a separate session, or the
first process of a container: `python -m skyward.runs.driver FOLDER`. It confirms in one line on standard output that
the program runs; an earlier failure is reported in a line on standard error and by the exit status.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
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
from skyward.runs.program import run_program
from skyward.runs.shared_folder import fill, keep_written, shared_folder

STARTED = "started"
CACHE_FOLDER = "cache"  # in the run's directory, while it runs in a container
PROGRAM_FOLDER = "program"  # in the run's directory: the files that a container is sent
_LAUNCH_FILE = "launch.json"
# files of handed-over hosts and keys; skyward.ssh, which defines the names, is loaded only if there are any
HANDED = ("hosts.json", "key", "known_hosts")


def new_run(program: str, arguments: Sequence[str], *, is_module: bool = False, name: str | None = None) -> RunRecord:
    """Return the record of a run of a program that starts now in this process's working directory.

    Raises:
        ConfigError: there is no such program, or a run of that name exists.
    """
    if not is_module and not Path(program).exists():
        raise ConfigError(f"There is no program {program!r} in {Path.cwd()}.")
    stem = program.rpartition(".")[2] if is_module else program
    run_id = name or new_id(stem)
    while name is None and folder_of(run_id).exists():
        run_id = new_id(stem)
    if folder_of(run_id).exists():
        raise ConfigError(
            f"There is a run {run_id!r} already: see `skyward ps --all`. Choose another name, or leave --name out."
        )
    return RunRecord.starting(run_id, f"{MODULE}{program}" if is_module else program, arguments, current_user())


def run_here(record: RunRecord) -> int:
    """Run it in the foreground; return its exit status.

    Raises:
        ConfigError: it cannot be started.
    """
    return _drive(folder_of(record.id), record, record.words, os.environ, foreground=True)


def write_launch(folder: Path, record: RunRecord, words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Write the file that tells a driver what to start. The driver deletes it as soon as it has read it.

    Args:
        folder: of the run; it is created.
        record: of the run.
        words: the arguments of `python`.
        variables: further environment variables of the program. They may be secrets.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(folder / _LAUNCH_FILE, {"words": words, "record": asdict(record), "variables": variables})


def main(folder: Path) -> int:
    """Drive the run in a directory that was prepared with `write_launch`."""
    launch = json.loads((folder / _LAUNCH_FILE).read_text())
    (folder / _LAUNCH_FILE).unlink()
    record = RunRecord.of(launch["record"])
    # followers of a run see each line when it is printed, and none is lost if the program is killed
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **launch["variables"]}
    try:
        if record.container is not None:
            fill(shared_folder(record, folder), folder / PROGRAM_FOLDER, record.program)
        with ExitStack() as held:
            if (folder / HANDED[0]).is_file():
                from skyward.runs.keys import held_keys
                from skyward.ssh.connection import read_handed

                held.enter_context(held_keys(list(read_handed(folder).values()), record))
            return _drive(folder, record, launch["words"], environment, on_start=_confirm)
    except SkywardError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        for name in HANDED[1:]:  # no longer usable
            (folder / name).unlink(missing_ok=True)
        rmtree(folder / CACHE_FOLDER, ignore_errors=True)


def _drive(
    folder: Path,
    record: RunRecord,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    foreground: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> int:
    """Run a program to its end, with its record in a directory; return its exit status.

    Raises:
        ConfigError: the program cannot be started. This is also recorded.
    """
    hold(folder)
    record.write(folder)
    try:
        status, reason = run_program(
            [sys.executable, *words],
            folder,
            directory=Path(record.directory),
            environment={**environment, FOLDER_VARIABLE: str(folder)},
            foreground=foreground,
            on_start=on_start,
        )
    except ConfigError as error:
        note(folder, "ended", status=127, reason=str(error))
        raise
    if record.container is not None:
        try:
            keep_written(shared_folder(record, folder), folder)
        except OSError as error:
            reason = reason or f"not all that it has written could be added to its record: {error}"
    if (folder / DOWN_FILE).exists():
        by_signal = reason is None or reason.startswith("ended by SIG")  # a signal sent by `skyward down`
        reason = ENDED_BY_DOWN if by_signal else f"{ENDED_BY_DOWN}; {reason}"
    note(folder, "ended", status=status, reason=reason)
    return status


def _confirm() -> None:
    os.write(1, f"{STARTED}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # the process that started this one need not stay alive or read
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
