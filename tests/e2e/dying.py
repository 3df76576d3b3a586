"""A client that ends at one of its provider's calls, as the programs of the crash sweeps ask for."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any


def die_at(owner: Any, name: str, when: str) -> None:
    """Have this process end at the first call of `owner.name`: by SIGKILL "before" or "after" it, by Ctrl-C "in" it."""
    original, calls = getattr(owner, name), itertools.count()

    def call(*given: Any, **more: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        elif when == "in" and next(calls) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        result = original(*given, **more)
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)
