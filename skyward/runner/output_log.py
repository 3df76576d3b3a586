"""Log files with the output of a node's processes, in its run directory: of bounded size, readable by the owner only.

Each process has two files of JSON lines, like the journals of `skyward.records`: `w0.log` and the older `w0.log.1`.
When the newer one is full it replaces the older one, and records how many bytes were lost. Text is written as soon as
it is printed, even an unfinished line, so that the output of a killed process is complete: the kernel keeps what has
been written. The agent's files hold what arrived through the workers' file descriptors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, NamedTuple

from skyward.system import threading, time

_TAIL = 512 * 1024  # bytes at the end of a log that are searched for unfinished lines
_NAMES = {1: "out", 2: "err"}


class Unfinished(NamedTuple):
    """The beginning of a line that a process had printed when it ended, with its call and stream."""

    call: int | None
    stream: int
    text: str


def log_name(worker: int) -> str:
    """Return the name of a worker's log; a process that replaces the worker appends to it."""
    return f"w{worker}"


class OutputLog:
    """Writes the log files of one process of a node, from any thread.

    Args:
        folder: the node's run directory.
        name: name of the process: "w0", "agent".
        limit: maximum size of both files together, in bytes.
        failed: called once, with a message, when writing fails; nothing is written after that.
        about: fields that apply to all of the output; written at the beginning of each file.
    """

    def __init__(
        self, folder: Path, name: str, limit: int, failed: Callable[[str], object], **about: int | None
    ) -> None:
        self._path, self._limit, self._failed = folder / f"{name}.log", max(limit // 2, 4096), failed
        self._about = about
        self._lock = threading.Lock()
        self._file = -1
        self._size = self._gone = 0
        self._main = threading.main_thread().ident
        try:
            self._open(begins=True)
        except OSError as error:
            self._fail(error)

    def add(self, text: str, *, call: int | None, stream: int, worker: int | None = None) -> None:
        """Write text that has just been printed."""
        whose = self._whose(call, stream) if worker is None else f'"worker":{worker},"stream":"{_NAMES[stream]}"'
        self._write(f'{whose},"text":{encode_basestring(text)}')

    def passed_on(self, *, call: int | None, stream: int) -> None:
        """Record that this thread's unfinished line is being sent to the client."""
        self._write(f'{self._whose(call, stream)},"sent":true')

    def _whose(self, call: int | None, stream: int) -> str:
        thread = threading.get_ident()
        own = "" if thread == self._main else f',"thread":{thread}'
        return f'"call":{"null" if call is None else call},"stream":"{_NAMES[stream]}"{own}'

    def _write(self, fields: str) -> None:
        if self._file < 0:
            return
        line = f'{{"t":{time.time():.3f},{fields}}}\n'.encode("utf-8", "replace")
        with self._lock:
            try:
                if self._size + len(line) > self._limit:
                    self._turn()
                self._put(line)
            except OSError as error:
                self._fail(error)

    def _put(self, line: bytes) -> None:
        self._size += len(line)
        while line:
            line = line[os.write(self._file, line) :]

    def _turn(self) -> None:
        """Start a new newer file; the full one replaces the older one."""
        older = self._path.with_suffix(".log.1")
        if older.exists():
            self._gone += older.stat().st_size
        os.close(self._file)
        self._path.replace(older)
        self._open(begins=False)

    def _open(self, *, begins: bool) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        about = {"t": round(time.time(), 3), **self._about, "begins": begins, "gone": self._gone}
        mended = b"\n" if self._size else b""  # the previous process may have been killed while writing
        self._put(mended + json.dumps(about, separators=(",", ":")).encode() + b"\n")

    def _fail(self, error: OSError) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
        self._failed(f"What is printed here is no longer kept on this host: {self._path} cannot be written ({error}).")


def unfinished(folder: Path, name: str) -> list[Unfinished]:
    """Return the lines that a process of a node had begun when it ended, and that its client has not received."""
    open_lines: dict[tuple[Any, ...], str] = {}
    for entry in _tail(folder / f"{name}.log"):
        if entry.get("begins"):
            open_lines.clear()  # lines of the previous process
        key = (entry.get("call"), entry.get("stream"), entry.get("thread"))
        if "sent" in entry:
            open_lines.pop(key, None)
        elif "text" in entry:
            open_lines[key] = (open_lines.get(key, "") + entry["text"]).rpartition("\n")[2]
    streams = {text: number for number, text in _NAMES.items()}
    return [Unfinished(call, streams[stream], text) for (call, stream, _), text in open_lines.items() if text]


def _tail(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the last entries of a log, starting with its older file."""
    data = b""
    for each in (path, path.with_suffix(".log.1")):
        wanted = _TAIL - len(data)
        try:
            with each.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - wanted))
                data = file.read(wanted) + data
        except FileNotFoundError:
            break
    for line in data.split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # truncated at the start of the tail, or by the end of the writing process
        if isinstance(entry, dict):
            yield entry
