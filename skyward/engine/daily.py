"""Notices that are printed at most once a day for each user and machine: when each was printed last."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

_DAY_S = 86400
_said: set[str] = set()  # by this process


def is_due(what: str) -> bool:
    """Whether something has not been said for a day; it counts as said from now on.

    Where the user's cache cannot be written it is said once per process.
    """
    if what in _said:
        return False
    _said.add(what)
    try:
        stamp = _folder() / hashlib.sha256(what.encode()).hexdigest()[:16]
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < _DAY_S:
            return False
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except (OSError, RuntimeError):  # no cache, or no home: nothing depends on it but how often a line is shown
        pass
    return True


def _folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("skyward") / "said"
