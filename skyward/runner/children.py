"""The worker processes of an agent: start, output below Python, exit, and whether memory ran out."""

from __future__ import annotations

import codecs
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skyward.runner.config import WorkerStart
from skyward.system import select, socket, threading, time
from skyward.wire.messages import STDERR, STDOUT

if TYPE_CHECKING:
    from skyward.runtime.masking import Masks  # the agent imports it while its workers start

_CHUNK = 64 * 1024
_DRAIN_S = 0.1  # how long output is read after the end: a process that left the group may hold the pipes open for ever
PARTIAL_S = 0.1  # how long the start of a line waits for its rest
_PARTIAL_CHARS = 64 * 1024  # a longer line is passed on in pieces
_RING_BYTES = 64 * 1024
_TAIL_BYTES = 8 * 1024
_TAIL_LINES = 20
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


class Ended(NamedTuple):
    """How a worker process ended: exit status or signal number, and whether its agent killed it."""

    code: int | None
    signal: int | None
    asked: bool


class Child:
    """One worker process, from its start to its exit.

    It leads a session of its own, so that whatever its tasks started can be killed with it. The private socket tells it
    what to be; the end of that socket tells it that the agent is gone.

    Attributes:
        start: its settings, sent over the private socket.
        env: what its environment has besides its agent's.
        address: where it listens, None before it does.
    """

    def __init__(self, start: WorkerStart, env: Mapping[str, str] | None = None) -> None:
        self.start = start
        self.env = dict(env or {})
        self.address: str | None = None
        self._lock = threading.Lock()
        self._ended = self._asked = False
        self._ring = Ring()
        self._control, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skyward.runner.worker", str(fd)],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(fd,),
                start_new_session=True,
            )
        self._tell(asdict(start))

    def ask_exit(self, grace_s: float) -> None:
        """Ask it to leave its hooks and end within `grace_s`."""
        self._tell({"exit": grace_s})

    def kill(self) -> None:
        """End it and all it started, at once; nothing happens if it has ended."""
        with self._lock:
            if not self._ended:
                self._asked = True
                self._kill_group()

    def signal(self, number: int) -> None:
        """Send the process a signal; nothing happens if it has ended."""
        with self._lock:
            if not self._ended:
                self._process.send_signal(number)

    def wait(self) -> Ended:
        """Block until it has ended; what it started and left behind is killed."""
        # The dead leader is not reaped before its group is killed: until then nobody else can get the group's number.
        wait_unreaped(self._process.pid)
        with self._lock:
            self._kill_group()
            status = self._process.wait()
            self._ended = True
        self._control.shutdown(socket.SHUT_RDWR)  # wakes `read`
        return Ended(None if status < 0 else status, -status if status < 0 else None, self._asked)

    def read(self, on_listening: Callable[[str], None], on_output: Callable[[int, str], None]) -> None:
        """Pass on what it says and writes until it has ended (a thread of its own), then let go of its sockets."""
        assert self._process.stdout and self._process.stderr
        streams = {self._process.stdout.fileno(): STDOUT, self._process.stderr.fileno(): STDERR}
        lines = {fd: Lines() for fd in streams}
        poller = select.poll()
        for fd in (*streams, self._control.fileno()):
            poller.register(fd, select.POLLIN)
        give_up: float | None = None
        while lines and (give_up is None or time.monotonic() < give_up):
            for fd, _ in poller.poll(_timeout_ms([give_up, *(part.due() for part in lines.values())])):
                if fd in streams:
                    text = self._read(fd, lines)
                    if fd not in lines:
                        poller.unregister(fd)
                    if text:
                        on_output(streams[fd], text)
                elif not self._listen_to(on_listening):
                    poller.unregister(fd)
                    give_up = time.monotonic() + _DRAIN_S
            for fd, part in lines.items():
                if (due := part.due()) is not None and due <= time.monotonic():
                    on_output(streams[fd], part.flush())
        for fd, part in lines.items():
            if text := part.finish():
                on_output(streams[fd], text)
        self._process.stdout.close()
        self._process.stderr.close()

    def log(self) -> str:
        """The last lines it wrote below Python."""
        return self._ring.tail()

    def close(self) -> None:
        """Let go of the private socket; called after `wait` and `read`."""
        self._control.close()

    def _read(self, fd: int, lines: dict[int, Lines]) -> str:
        """What is there of one stream; the stream is forgotten at its end."""
        data = os.read(fd, _CHUNK)
        if not data:
            return lines.pop(fd).finish()
        self._ring.add(data)
        return lines[fd].feed(data, time.monotonic())

    def _listen_to(self, on_listening: Callable[[str], None]) -> bool:
        """Read from the private socket; False at its end. Only the first line, sent before user code runs, counts."""
        try:
            data = self._control.recv(4096)
        except ConnectionResetError:  # it ended before it had read what it was told
            return False
        if data and self.address is None:
            self.address = json.loads(data)["listening"]
            on_listening(self.address)
        return bool(data)

    def _tell(self, document: dict[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            pass  # it has ended, which `wait` reports

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left of it, or only processes that changed their user and are out of reach


def wait_unreaped(pid: int) -> None:
    """Block until a child has ended, and leave it to be reaped: until then nobody else can get its number."""
    if sys.platform == "darwin":  # Python has no waitid there before 3.13
        queue = select.kqueue()
        try:
            ended = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([ended], 1)
        except ProcessLookupError:
            return  # it has ended already
        finally:
            queue.close()
    else:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _timeout_ms(moments: list[float | None]) -> int | None:
    due = [moment for moment in moments if moment is not None]
    return max(0, int((min(due) - time.monotonic()) * 1000) + 1) if due else None


# what they write ------------------------------------------------------------------------------------------------------


class Ring:
    """The last 64 KiB of what was written."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and forget what is too old."""
        self._data += data
        del self._data[:-_RING_BYTES]

    def tail(self) -> str:
        """The last 20 lines, at most 8 KiB."""
        lines = bytes(self._data[-_TAIL_BYTES:]).splitlines(keepends=True)
        return b"".join(lines[-_TAIL_LINES:]).decode("utf-8", "replace")


class Lines:
    """Makes text of a stream of bytes: whole lines where possible, never a part of a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._since = 0.0

    def feed(self, data: bytes, now: float) -> str:
        """Take bytes in; returns the text that is complete."""
        had = bool(self._partial)
        text = self._partial + self._decoder.decode(data)
        cut = len(text) if len(text) - text.rfind("\n") > _PARTIAL_CHARS else text.rfind("\n") + 1
        self._partial = text[cut:]
        if cut or not had:
            self._since = now
        return text[:cut]

    def due(self) -> float | None:
        """When the start of a line has waited long enough; None if there is none."""
        return self._since + PARTIAL_S if self._partial else None

    def flush(self) -> str:
        """The start of a line, complete or not."""
        text, self._partial = self._partial, ""
        return text

    def finish(self) -> str:
        """All that is left, the bytes of a character that was cut off included."""
        return self.flush() + self._decoder.decode(b"", final=True)


class ChildOutput:
    """Takes the text of a worker's descriptors, in the thread that reads them: masks, records and sends it.

    Args:
        masks: the secrets of the client of now.
        keep: writes stream and text to this host's disk.
        tell: sends them to the client.
    """

    def __init__(
        self, masks: Callable[[], Masks], keep: Callable[[int, str], None], tell: Callable[[int, str], None]
    ) -> None:
        self._masks, self._keep, self._tell = masks, keep, tell
        self._held: dict[int, str] = {}  # what may be the beginning of a secret, by stream
        self._begun = set[int]()  # the streams whose last line has no end

    def add(self, stream: int, text: str) -> None:
        """Take what has been written."""
        masks = self._masks()
        if masks:
            text, held = masks.split(self._held.pop(stream, "") + text)
            if held:
                self._held[stream] = held
        self._pass_on(stream, text)

    def finish(self) -> None:
        """Take the end: what comes next is of another process, and begins a line."""
        for stream, held in self._held.items():
            self._pass_on(stream, self._masks().conceal(held))
        for stream in tuple(self._begun):
            self._pass_on(stream, "\n")

    def _pass_on(self, stream: int, text: str) -> None:
        if text:
            (self._begun.discard if text.endswith("\n") else self._begun.add)(stream)
            self._keep(stream, text)
            self._tell(stream, text)


# lack of memory -------------------------------------------------------------------------------------------------------


class OomCounter:
    """Counts the kernel's kills in this node's cgroup; where the kernel does not tell, it never sees any."""

    def __init__(self, membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> None:
        self._lock = threading.Lock()
        self._file = next((path for path in _candidates(membership, cgroups) if _kills(path) is not None), None)
        self._seen = self._read()

    def take(self) -> bool:
        """Whether there was a kill since the last look; each kill is reported to one caller only."""
        with self._lock:
            before, self._seen = self._seen, self._read()
            return self._seen > before

    def _read(self) -> int:
        return (_kills(self._file) or 0) if self._file else 0


def _candidates(membership: Path, cgroups: Path) -> list[Path]:
    """Files that may hold the counter, the likeliest first.

    A container may see its own cgroup at the root of the mount and yet be told its path on the host, so that both the
    path and the root are tried.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mount, name = cgroups / "memory", "memory.oom_control"
        elif not controllers:
            mount, name = cgroups, "memory.events"
        else:
            continue
        found += (mount / path.lstrip("/") / name, mount / name)
    return found


def _kills(path: Path) -> int | None:
    """The value of `oom_kill` in this file; None if the file is not there or does not say."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
