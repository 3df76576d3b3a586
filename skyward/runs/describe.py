"""What a program's pools are made of, found out by running it until it opens the first one.

The program runs as `python PROGRAM ARGUMENTS` would, in a process of its own, with an empty standard input; what it
prints goes to standard error. It is killed with all its processes as soon as one of them opens a pool; nothing is
created for that pool. A script that declares images or pools at its top level is imported instead, which does not run
its `if __name__ == "__main__":`, unless it is given arguments.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from skyward._pool.config import ADDRESS
from skyward._pool.description import DeclaredPool
from skyward.builder.sources.declared import Declared
from skyward.errors import ConfigError
from skyward.nodes.run_directory import private_directory

How = Literal["import", "run", "module"]
_POLL_S = 0.1


def declared_by(program: str, arguments: Sequence[str] | None = None, name: str = "") -> list[Declared]:
    """Return the images and pools that a program declares at its top level, else the first pool that it opens.

    Args:
        program: path of a script or a Jupyter notebook (`.ipynb`).
        arguments: run it with these, whatever its top level declares; None to import it first.
        name: the one image or pool at its top level that is wanted; "" for all.

    Raises:
        ConfigError: it fails, ends without a pool, or has nothing of that name.
    """
    if not Path(program).is_file():
        raise ConfigError(f"{program} cannot be read: there is no such file.")
    is_guarded = program.endswith(".py") and b"__name__" in Path(program).read_bytes()
    if name or (arguments is None and is_guarded):
        kind, found = _answer("import", program, arguments or (), name)
        if name and (kind == "opened" or not found):
            why = "opens a pool when it is imported" if kind == "opened" else f"binds no image and no pool to {name!r}"
            raise ConfigError(f"{program}:{name}: the program {why}.")
        if found:
            return found
    _, found = _answer("run", program, arguments or (), name)
    if not found:
        raise ConfigError(f"{program} ended without opening a pool, and declares no image at its top level.")
    return found


def first_pool(program: str, arguments: Sequence[str], *, is_module: bool = False) -> DeclaredPool:
    """Run a program, or a module as `python -m` does, and return the first pool that it opens.

    Raises:
        ConfigError: it fails, or ends without opening a pool.
    """
    kind, found = _answer("module" if is_module else "run", program, arguments, "")
    if kind != "opened":
        raise ConfigError(f"{program} ended without opening a pool. Give --on PLACE to say where to run it.")
    pool = found[0]
    assert isinstance(pool, DeclaredPool)
    return pool


def _answer(how: How, program: str, arguments: Sequence[str], name: str) -> tuple[str, list[Declared]]:
    """Run or import a program in a process of its own; return "opened" or "found", and what was sent."""
    command = [sys.executable, "-u", "-P", "-m", "skyward.runs.described", how, name, program, *arguments]
    with private_directory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = folder / "answers"
        listener.bind(str(address))
        listener.listen()
        listener.settimeout(_POLL_S)
        environment = {**os.environ, ADDRESS: str(address)}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
        try:
            kind, value = _last_message(listener, process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if kind == "failed":
        raise ConfigError(f"{program} failed before it opened a pool: {value}")
    if kind == "":
        status = process.returncode
        how_ended = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise ConfigError(f"{program} {how_ended} before it opened a pool.")
    return kind, value


def _last_message(listener: socket.socket, process: subprocess.Popen[bytes]) -> tuple[str, Any]:
    """Return the first pool's message, or the last one before the program ends: a thread may go on after an error."""
    last, has_ended = ("", None), False
    while last[0] != "opened":
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if has_ended:
                break
            has_ended = process.poll() is not None  # its last message may still wait
            continue
        with connection, connection.makefile("rb") as file:
            last = pickle.load(file)
    return last
