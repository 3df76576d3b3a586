"""The worker processes of an agent: start, output through file descriptors, exit, and out-of-memory detection."""

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
    from skyward.runtime.masking import Masks  # imported by the agent while its workers start

_CHUNK = 64 * 1024
_DRAIN_S = 0.1  # how long output is read after the exit: a process outside the group may keep the pipes open
_RING_BYTES = 64 * 1024
_TAIL_BYTES = 8 * 1024
_TAIL_LINES = 20
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


class Ended(NamedTuple):
    """How a worker process ended: exit status or signal number, and whether its agent killed it (`asked`)."""

    code: int | None
    signal: int | None
    asked: bool


class Child:
    """One worker process, from its start to its exit.

    It leads its own session, so that what its tasks started in it can be killed with it. It receives its settings over
    the private socket; the end of that socket means that the agent has ended.

    Attributes:
        start: its settings, sent over the private socket.
        env: variables in addition to those of its agent.
        address: where it listens, None until then.
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

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    def ask_exit(self, grace_s: float) -> None:
        """Ask it to exit its contexts and end within `grace_s`."""
        self._tell({"exit": grace_s})

    def kill(self) -> None:
        """Kill it and everything it started; do nothing if it has ended."""
        with self._lock:
            if not self._ended:
                self._asked = True
                self._kill_group()

    def signal(self, number: int) -> None:
        """Send the process a signal; do nothing if it has ended."""
        with self._lock:
            if not self._ended:
                self._process.send_signal(number)

    def wait(self) -> Ended:
        """Block until it has ended, then kill the processes that it left behind."""
        # The dead leader is reaped after its group is killed: until then the group's number cannot be reused.
        wait_unreaped(self._process.pid)
        with self._lock:
            self._kill_group()
            status = self._process.wait()
            self._ended = True
        self._control.shutdown(socket.SHUT_RDWR)  # wakes `read`
        return Ended(None if status < 0 else status, -status if status < 0 else None, self._asked)

    def read(self, on_listening: Callable[[str], None], on_output: Callable[[int, str], None]) -> None:
        """Pass on its address and output until it has ended, then close its pipes; in a thread of its own."""
        assert self._process.stdout and self._process.stderr
        streams = {self._process.stdout.fileno(): STDOUT, self._process.stderr.fileno(): STDERR}
        decoders = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in streams}
        poller = select.poll()
        for fd in (*streams, self._control.fileno()):
            poller.register(fd, select.POLLIN)
        give_up: float | None = None
        while decoders and (give_up is None or time.monotonic() < give_up):
            for fd, _ in poller.poll(None if give_up is None else _DRAIN_S * 1000):
                if fd in streams:
                    data = os.read(fd, _CHUNK)
                    self._ring.add(data)
                    if text := decoders[fd].decode(data, final=not data):
                        on_output(streams[fd], text)
                    if not data:
                        poller.unregister(fd)
                        del decoders[fd]
                elif not self._listen_to(on_listening):
                    poller.unregister(fd)
                    give_up = time.monotonic() + _DRAIN_S
        self._process.stdout.close()
        self._process.stderr.close()

    def log(self) -> str:
        """Return the last lines that it wrote to its file descriptors."""
        return self._ring.tail()

    def close(self) -> None:
        """Close the private socket; called after `wait` and `read`."""
        self._control.close()

    def _listen_to(self, on_listening: Callable[[str], None]) -> bool:
        """Read from the private socket; return False at its end.

        Only the first line counts, as it is sent before user code runs.
        """
        try:
            data = self._control.recv(4096)
        except ConnectionResetError:  # it ended with unread data
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
            pass  # nothing is left, or only processes of other users, which cannot be killed


def wait_unreaped(pid: int) -> None:
    """Block until a child has ended, without reaping it: until it is reaped, its number cannot be reused."""
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


# output ---------------------------------------------------------------------------------------------------------------


class Ring:
    """The last 64 KiB of the output."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and drop the oldest bytes beyond the limit."""
        self._data += data
        del self._data[:-_RING_BYTES]

    def tail(self) -> str:
        """Return the last 20 lines, at most 8 KiB."""
        lines = bytes(self._data[-_TAIL_BYTES:]).splitlines(keepends=True)
        return b"".join(lines[-_TAIL_LINES:]).decode("utf-8", "replace")


class ChildOutput:
    """Masks, records and sends the text from a worker's file descriptors, in the thread that reads them.

    Args:
        masks: returns the secrets of the current client.
        tell: sends stream and text to the client.
    """

    def __init__(self, masks: Callable[[], Masks], tell: Callable[[int, str], None]) -> None:
        self._masks, self._tell = masks, tell
        self._held: dict[int, str] = {}  # text that may be the beginning of a secret, by stream
        self._begun = set[int]()  # the streams whose last line is unfinished

    def add(self, stream: int, text: str) -> None:
        """Process text that has been written."""
        masks = self._masks()
        if masks:
            text, held = masks.split(self._held.pop(stream, "") + text)
            if held:
                self._held[stream] = held
        self._pass_on(stream, text)

    def finish(self) -> None:
        """Flush what is held back, and end unfinished lines: further output comes from another process."""
        for stream, held in self._held.items():
            self._pass_on(stream, self._masks().conceal(held))
        for stream in tuple(self._begun):
            self._pass_on(stream, "\n")

    def _pass_on(self, stream: int, text: str) -> None:
        if text:
            (self._begun.discard if text.endswith("\n") else self._begun.add)(stream)
            self._tell(stream, text)


# lack of memory -------------------------------------------------------------------------------------------------------


class OomCounter:
    """Counts the kernel's out-of-memory kills in this node's cgroup; sees none if the kernel does not report them."""

    def __init__(self, membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> None:
        self._lock = threading.Lock()
        version_1 = [folder / "memory.oom_control" for folder in cgroup_folders("memory", membership, cgroups)]
        version_2 = [folder / "memory.events" for folder in cgroup_folders("", membership, cgroups)]
        self._file = next((path for path in (*version_1, *version_2) if _kills(path) is not None), None)
        self._seen = self._read()

    def take(self) -> bool:
        """Return whether there was a kill since the last check; each kill is reported to one caller only."""
        with self._lock:
            before, self._seen = self._seen, self._read()
            return self._seen > before

    def _read(self) -> int:
        return (_kills(self._file) or 0) if self._file else 0


def cgroup_folders(controller: str, membership: Path, cgroups: Path) -> list[Path]:
    """Return the directories that may be this process's cgroup, likeliest first; "" is the tree of version 2.

    A container may see its own cgroup at the root of the mount while /proc reports its path on the host, so both the
    path and the root are tried.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return []
    mount = cgroups / controller
    return [each for _, names, path in lines if controller in names.split(",") for each in (mount / path[1:], mount)]


def _kills(path: Path) -> int | None:
    """Return the value of `oom_kill` in this file; None if the file or the field does not exist."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
