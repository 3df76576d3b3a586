"""Counts processes that the kernel's out-of-memory killer has ended in this process's cgroup (v1 or v2)."""

from __future__ import annotations

from pathlib import Path

from skyward.system import threading

_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


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
