"""A client that kills itself at one of its provider's calls, as the programs of the crash sweeps ask for."""

from __future__ import annotations

import os
import signal
from typing import Any


def die_at(owner: Any, name: str, when: str) -> None:
    """Have this process end by SIGKILL at the first call of `owner.name`: "before" or "after" it."""
    original = getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)
