"""Identifiers of processes and users in labels and files, from which other processes recognise the owner."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from skyward.system import socket

USER = "skyward.user"  # label, or tag, with the user whose client created a resource


def current_user() -> str:
    """Return the user this process runs as, such as "ann@laptop", by which pools are labelled and found again."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container that runs as a number missing from its /etc/passwd
        name = str(uid)
    return re.sub(r"[^\w.:/@+=-]", "_", f"{name}@{socket.gethostname()}")  # characters allowed in tags of EC2


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from a later one with the same ID by its start time.

    Attributes:
        pid: its process ID.
        started: its start time in clock ticks since boot; "" if the system does not report it.
        namespace: the PID namespace that `pid` refers to; "" if there is only one.
    """

    pid: int
    started: str
    namespace: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identifier of a running process in this process's namespace."""
        return cls(pid, _started(pid) or "", _namespace())

    @classmethod
    def parse(cls, text: str) -> ProcessId | None:
        """Parse the `text` of an identifier; None if it is not one."""
        pid, _, rest = text.strip().partition(",")
        started, _, namespace = rest.partition(",")
        return cls(int(pid), started, namespace) if pid.isdigit() else None

    @property
    def text(self) -> str:
        """The format that `parse` reads."""
        return f"{self.pid},{self.started},{self.namespace}"

    @property
    def for_people(self) -> str:
        """Process and machine, for display in messages."""
        return f"{self.pid}@{socket.gethostname()}"

    def is_gone(self) -> bool:
        """Return whether the process has certainly ended; False if that cannot be known from here."""
        if self.namespace != _namespace():
            return False
        started = _started(self.pid)
        return started is None or started != self.started


def _started(pid: int) -> str | None:
    """Return the start time of a process; "" if the system does not report it, None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return "" if _runs(pid) else None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *numbers = stat.rpartition(")")[2].split()  # the process name before it may contain any characters
    return None if state in "ZX" else numbers[18]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
