"""Identifies processes and people in labels and files, so that other processes can tell whose something is."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from skyward.system import socket

USER = "skyward.user"  # the label, or tag, that names the person whose client made something


def current_user() -> str:
    """The person this process runs as, such as "ann@laptop": pools are labelled with it, and found again by it."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container that runs as a number which its /etc/passwd lacks
        name = str(uid)
    return re.sub(r"[^\w.:/@+=-]", "_", f"{name}@{socket.gethostname()}")  # what tags of EC2 may hold


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, distinguished from a later one with the same number by its start time.

    Attributes:
        pid: its number.
        started: when it started, in clock ticks since boot; "" where the system does not say.
        namespace: the process namespace in which `pid` means something; "" where there is only one.
    """

    pid: int
    started: str
    namespace: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """A process that runs now, in this process' namespace."""
        return cls(pid, _started(pid) or "", _namespace())

    @classmethod
    def parse(cls, text: str) -> ProcessId | None:
        """The process that a string names; None if it names none."""
        pid, _, rest = text.strip().partition(",")
        started, _, namespace = rest.partition(",")
        return cls(int(pid), started, namespace) if pid.isdigit() else None

    @property
    def text(self) -> str:
        """The form `parse` reads."""
        return f"{self.pid},{self.started},{self.namespace}"

    @property
    def for_people(self) -> str:
        """Process and machine, for messages."""
        return f"{self.pid}@{socket.gethostname()}"

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; False when it cannot be known from here."""
        if self.namespace != _namespace():
            return False
        started = _started(self.pid)
        return started is None or started != self.started


def _started(pid: int) -> str | None:
    """Start time of a process; "" where the system does not say, None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return "" if _runs(pid) else None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *numbers = stat.rpartition(")")[2].split()  # the name before it may hold anything
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
