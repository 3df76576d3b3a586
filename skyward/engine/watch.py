"""The ends of containers: one stream of the engine's events for all containers with a label."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skyward.engine.failures import engine_call

_OUT_OF_MEMORY_NEWS_S = 0.5  # how long after a death by SIGKILL the engine may still say that it was for memory
_SIGKILLED = 137


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended. `code` is None when the engine itself is gone and it is not known."""

    code: int | None
    oom: bool = False


class Watch:
    """Learns of the end of every container that carries the given labels, from its creation on."""

    def __init__(self, api: Any, engine: str, labels: Mapping[str, str]) -> None:
        self._news = threading.Condition()
        self._codes: dict[str, int] = {}
        self._short_of_memory: set[str] = set()
        self._destroyed: set[str] = set()
        self._over = False
        with engine_call("report its events", engine):
            self._events = api.events(
                decode=True,
                filters={
                    "type": "container",
                    "label": [f"{name}={value}" for name, value in labels.items()],
                    # Podman filters by names of its own (died, remove)
                    "event": ["die", "died", "oom", "destroy", "remove"],
                },
            )
        self._thread = threading.Thread(target=self._follow, name="skyward-engine-events", daemon=True)
        self._thread.start()

    def ending(self, container_id: str, timeout_s: float) -> Ending | None:
        """How a container ended; None if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            if not self._news.wait_for(lambda: container_id in self._codes or self._over, timeout_s):
                return None
            code = self._codes.get(container_id)
            if code == _SIGKILLED:
                # the two events come in either order; the container's removal ends the doubt
                doubt_s = max(0.0, min(_OUT_OF_MEMORY_NEWS_S, deadline - time.monotonic()))
                self._news.wait_for(
                    lambda: container_id in self._short_of_memory | self._destroyed or self._over, doubt_s
                )
            return Ending(code, container_id in self._short_of_memory)

    def close(self) -> None:
        """Stop watching."""
        self._events.close()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        # a dead engine ends this stream without an exception
        for event in self._events:
            container_id = event["Actor"]["ID"]
            with self._news:
                if event["Action"] in ("die", "died"):
                    self._codes[container_id] = int(event["Actor"]["Attributes"]["exitCode"])
                elif event["Action"] == "oom":
                    self._short_of_memory.add(container_id)
                else:
                    self._destroyed.add(container_id)
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()
