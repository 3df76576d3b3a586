"""The worker's side of `gather`: sends a rank's value to the client and waits for those of all ranks.

The thread that gathers sleeps; whoever reads the socket meanwhile hands it the answer. It is woken as well when the
client is gone and when the worker is to end, so that no gather waits for an answer that cannot come.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from skyward.errors import PluginError
from skyward.model.instance import SETUP
from skyward.system import threading
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, decode, encode


class _Wait:
    """One gather that has been sent and not yet answered."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: Frame | str = ""  # a string says why there is none

    def end(self, answer: Frame | str) -> None:
        self.answer = answer
        self.done.set()


class GatherClient:
    """The gathers of one worker process.

    Args:
        send: hands a frame to the client; returns whether an answer can come.
        running: the id of the call that the calling thread belongs to, `SETUP` while plugins are set up, None
            otherwise; and the ids of all that run.
    """

    def __init__(
        self, send: Callable[[Frame], bool], running: Callable[[], tuple[int | None, Collection[int]]]
    ) -> None:
        self._send, self._running = send, running
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._rounds: dict[int, int] = {}  # gathers so far, by call
        self._waits: dict[tuple[int, int], _Wait] = {}  # by call and round

    def gather(self, value: Any, name: str, timeout_s: float | None) -> list[Any]:
        """The values of all ranks; see `skyward.runtime.group.gather`."""
        if os.getpid() != self._process:
            raise PluginError(
                f"gather({name!r}) was called in a process forked from a worker; only the worker itself can gather."
            )
        call, all_running = self._running()
        if call is None:
            raise PluginError(
                f"gather({name!r}) was called where no call and no set-up of plugins runs, or in a thread that belongs "
                "to none of several calls. Call it in the call's own thread."
            )
        data, buffers = payload.dumps(value, what=f"The value of gather({name!r})")
        wait = _Wait()
        with self._lock:
            self._rounds = {known: count for known, count in self._rounds.items() if known in all_running}
            number = self._rounds[call] = self._rounds.get(call, 0) + 1
            self._waits[call, number] = wait
        try:
            head = encode({"name": name, "round": number, "timeout_s": timeout_s})
            if not self._send(Frame(Kind.GATHER, call, head, [data, *buffers])):
                raise PluginError(f"gather({name!r}): the client is gone, or this worker is to end.")
            wait.done.wait()
        finally:
            with self._lock:
                self._waits.pop((call, number), None)
        if isinstance(wait.answer, str):
            raise PluginError(f"gather({name!r}): {wait.answer}")
        return _values(wait.answer, name)

    def begin_setup(self) -> None:
        """Count the gathers of a set-up from one, as the other ranks do."""
        with self._lock:
            self._rounds.pop(SETUP, None)

    def take(self, frame: Frame) -> None:
        """Hand an answer to the thread that waits for it; does nothing if it does not any more."""
        document = decode(frame.head)
        with self._lock:
            wait = self._waits.get((frame.id, document["round"]))
        if wait is not None:
            wait.end(document.get("error") or frame)

    def abandon(self, why: str) -> None:
        """Let every gather that waits fail: no answer will come."""
        with self._lock:
            waits = tuple(self._waits.values())
        for wait in waits:
            wait.end(why)


def _values(answer: Frame, name: str) -> list[Any]:
    """The ranks' values out of the buffers of an answer, which holds a pickle and its buffers for each."""
    values, start = [], 0
    for parts in decode(answer.head)["parts"]:
        data, *buffers = answer.buffers[start : start + parts]
        values.append(payload.loads(data, buffers, what=f"A value of gather({name!r})"))
        start += parts
    return values
