"""Background processes of this clone's engine: start detached, recognise, stop. Ends nothing that is not ours."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .console import SetupError


def start(argv: Sequence[str], *, log: Path, env: Mapping[str, str]) -> int:
    """Start a process that is nobody's child and outlives this one and its terminal; return its pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    script = '"$@" >>"$0" 2>&1 </dev/null & echo $!'
    words = ["sh", "-c", script, str(log), *argv]
    return int(subprocess.run(words, env=env, cwd="/", start_new_session=True, check=True, capture_output=True).stdout)


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie that waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def arguments(pid: int) -> list[str]:
    """Return a live process's command line; empty for one that is gone, a zombie, or in the middle of exec."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.rstrip("\0").split("\0") if text else []


def names(argv: Sequence[str], path: Path) -> bool:
    """Whether a command line has `path`, or one below it, as an argument or an option's value."""
    values = (part for argument in argv for part in (argument, argument.partition("=")[2]))
    return any(value == str(path) or value.startswith(f"{path}/") for value in values)


def ours(pid_file: Path, path: Path) -> int | None:
    """Return the pid in `pid_file` when that process lives and names `path` on its command line."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if names(arguments(pid), path) else None


def naming(path: Path) -> list[int]:
    """Return every live process, this one apart, that names `path` on its command line."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and names(arguments(pid), path)]


def stop(pid: int, *, patience_s: float) -> None:
    """End a process: ask, wait up to `patience_s`, then kill."""
    for request, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        try:
            os.kill(pid, request)
        except ProcessLookupError:
            return
        if _gone(pid, wait_s):
            return
    raise SetupError(f"process {pid} ({' '.join(arguments(pid))}) does not end, not even when killed.")


def _gone(pid: int, wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while alive(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True
