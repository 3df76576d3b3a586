"""Sentences for the user that stop nothing: log lines, each said once by a process, however often it is met."""

from __future__ import annotations

import logging
from functools import lru_cache

_log = logging.getLogger(__name__)


@lru_cache(maxsize=256)
def warn(sentence: str) -> None:
    """Log a warning, unless this process has logged the same one."""
    _log.warning("%s", sentence)
