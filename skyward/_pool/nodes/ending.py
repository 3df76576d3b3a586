"""Describes how a process ended, in words."""

from __future__ import annotations

from signal import Signals


def ended_in_words(code: int | None, signal: int | None, oom: bool) -> str:
    """How a process ended, for an error message."""
    if oom:
        return "the kernel killed it (out of memory); give the node more memory (memory_gb=), or the call less data"
    if signal:
        try:
            name = Signals(signal).name
        except ValueError:
            name = "unknown"
        return f"it was killed by signal {signal} ({name})"
    return f"it ended with exit status {code}" if code is not None else "the reason is not known"
