"""Folders that may hold mounts: unmount what lies below, and remove a folder only when nothing is mounted there.

Removing a tree with a bind mount in it would remove the files of whatever is mounted.
"""

import ctypes
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from .console import SetupError

_MNT_DETACH = 2
_TABLE = Path("/proc/self/mountinfo")


def below(folders: Sequence[Path], table: str) -> list[str]:
    """Mount points at or below the folders, in the order of the kernel's table (outer ones first)."""
    points = [_unescape(line.split()[4]) for line in table.splitlines() if line]
    return [point for point in points if any(Path(point).is_relative_to(folder) for folder in folders)]


def _unescape(point: str) -> str:
    """The kernel writes space, tab, line end and backslash as octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


def unmount(*folders: Path) -> None:
    """Unmount everything at or below the folders; raise when something stays."""
    for point in reversed(below(folders, _TABLE.read_text())):
        # By system call, since a small Debian has no umount; what it refuses is seen in the table.
        ctypes.CDLL(None).umount2(os.fsencode(point), _MNT_DETACH)
    left = below(folders, _TABLE.read_text())
    if left:
        raise SetupError(
            f"{left[0]} is still mounted. Find who uses it with `fuser -vm {left[0]}`, then run this again."
        )


def remove(*folders: Path) -> None:
    """Unmount and remove folders; missing ones are fine."""
    unmount(*folders)
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
