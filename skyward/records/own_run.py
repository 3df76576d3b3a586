"""The run that this process belongs to: that of its driver, or one of its own, made when its first pool opens."""

from __future__ import annotations

import atexit
import getpass
import os
import sys
from pathlib import Path

from skyward.records.prune import prune_at_times
from skyward.records.run import FOLDER_VARIABLE, RunRecord, new_id, runs_folder, write_json
from skyward.system import socket, threading, time

_lock = threading.Lock()
_own: tuple[int, Path] | None = None  # the process that has it, and its directory


def run_of_process(process: str) -> Path:
    """The directory of this process's run: that which SKYWARD_RUN names, else one of this process alone.

    How the process ends is noted there, where that can be: see `end.json`.

    Args:
        process: this process as `nodes/process_id.py` writes it.

    Raises:
        OSError: it cannot be made.
    """
    global _own
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    with _lock:
        if _own is None or _own[0] != os.getpid():
            _own = os.getpid(), _new_run(process)
            atexit.register(_note_end, *_own)
        return _own[1]


def _new_run(process: str) -> Path:
    prune_at_times()
    program = _program()
    name = new_id(program)
    folder = runs_folder() / name
    RunRecord(
        id=name,
        program=program,
        arguments=tuple(sys.argv[1:]),
        started=round(time.time(), 3),
        directory=str(Path.cwd()),
        user=f"{_user()}@{socket.gethostname()}",
        pid=os.getpid(),
        process=process,
    ).write(folder)
    return folder


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # of a container that runs as a number; an OSError from Python 3.13 on
        return str(os.getuid())


def _program() -> str:
    """What runs in this process, as `RunRecord.program` has it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return f"-m {spec.name.removesuffix('.__main__')}"
    return sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-") else "python"


def _note_end(process: int, folder: Path) -> None:
    """Note that this process has ended. Its exit status is not known yet, unless an exception ends it."""
    if os.getpid() != process or not folder.is_dir():
        return
    error = getattr(sys, "last_value", None)
    failed = error is not None and not hasattr(sys, "ps1")
    end = {
        "status": 1 if failed else None,
        "ended": round(time.time(), 3),
        "reason": type(error).__name__ if failed else None,
    }
    try:
        write_json(folder / "end.json", end)
    except OSError as problem:
        if sys.stderr is not None:
            sys.stderr.write(f"skyward: that this run has ended is not recorded: {problem}\n")
