"""The worker's side of checkpoints: reads and writes the client's store over the connection that calls come by.

The thread of the call sleeps until an answer is there; whoever reads the socket hands it over. Some pieces of files are
under way at once, so that a long way to the client costs no waiting for each.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from skyward.errors import CheckpointError
from skyward.model.instance import SETUP
from skyward.runtime.checkpoint import Store
from skyward.runtime.checkpoint_store import CHUNK, Commit, FileFacts
from skyward.system import threading
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import Kind, decode, encode

DIRECTORY = ".skyward-checkpoints"  # below the node's working directory
_UNDER_WAY = 8  # pieces of files


class _Wait:
    """One request that has been sent and not yet answered."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: Frame | str = ""  # a string says why there is none

    def end(self, answer: Frame | str) -> None:
        self.answer = answer
        self.done.set()

    def result(self) -> tuple[dict[str, Any], Sequence[Buffer]]:
        """Block until it is answered.

        Raises:
            CheckpointError: the client could not do it, or is gone.
        """
        self.done.wait()
        if isinstance(self.answer, str):
            raise CheckpointError(self.answer)
        return decode(self.answer.head), self.answer.buffers


class CheckpointClient:
    """The checkpoints of one worker process.

    Args:
        send: hands a frame to the client; returns whether an answer can come.
        running: the id of the call that the calling thread belongs to, and those of all that run; see `GatherClient`.
        root: where their directories are made.
    """

    def __init__(
        self,
        send: Callable[[Frame], bool],
        running: Callable[[], tuple[int | None, Collection[int]]],
        root: Path,
    ) -> None:
        self._send, self._running, self._root = send, running, root
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waits: dict[int, _Wait] = {}

    def store(self, name: str, rank: int | None) -> Store:
        """See `skyward.runtime.checkpoint.Worker`."""
        return _RemoteStore(self, self._call(name), {"name": name, "rank": rank})

    def directory(self) -> Path:
        """See `skyward.runtime.checkpoint.Worker`."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        for left in self._root.iterdir():
            if _is_gone(int(left.name.partition(".")[0])):
                shutil.rmtree(left, ignore_errors=True)  # another worker of the node may do the same
        return Path(tempfile.mkdtemp(dir=self._root, prefix=f"{os.getpid()}."))

    def ask(self, call: int, document: Mapping[str, Any], data: Sequence[Buffer] = ()) -> _Wait:
        """Send a request; the answer is to be waited for."""
        wait, number = _Wait(), next(self._numbers)
        with self._lock:
            self._waits[number] = wait
        if not self._send(Frame(Kind.CHECKPOINT, call, encode({**document, "request": number}), data)):
            self.abandon("the client is gone, or this worker is to end.")
        return wait

    def take(self, frame: Frame) -> None:
        """Hand an answer to the thread that waits for it."""
        document = decode(frame.head)
        with self._lock:
            wait = self._waits.pop(document["request"], None)
        if wait is not None:
            wait.end(document.get("error") or frame)

    def abandon(self, why: str) -> None:
        """Let every request that waits fail: no answer will come."""
        with self._lock:
            waits, self._waits = tuple(self._waits.values()), {}
        for wait in waits:
            wait.end(f"A checkpoint could not be read or written: {why}")

    def _call(self, name: str) -> int:
        call, _ = self._running() if os.getpid() == self._process else (None, ())
        if call is None or call == SETUP:
            raise CheckpointError(
                f"checkpoint({name!r}) was called where no call runs, in a process forked from a worker, or in a "
                "thread that belongs to none of several calls. Call it in the call's own thread."
            )
        return call


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


class _RemoteStore:
    """The client's store of one checkpoint, for one call."""

    def __init__(self, client: CheckpointClient, call: int, named: Mapping[str, Any]) -> None:
        self._client, self._call, self._named = client, call, named
        self._writes: deque[_Wait] = deque()
        self._reads: deque[tuple[str, int, _Wait]] = deque()  # path, offset

    def last(self) -> Commit:
        return Commit.of_json(self._ask({"op": "last"}).result()[0]["commit"])

    def read(self, commit: Commit, path: str, offset: int) -> bytes:
        if not self._reads or self._reads[0][:2] != (path, offset):
            self._reads.clear()
        ahead = offset + CHUNK * len(self._reads)
        while len(self._reads) < _UNDER_WAY and ahead < commit.files[path].size:
            asked = {"op": "read", "number": commit.number, "path": path, "offset": ahead}
            self._reads.append((path, ahead, self._ask(asked)))
            ahead += CHUNK
        return bytes(self._reads.popleft()[2].result()[1][0]) if self._reads else b""

    def begin(self, files: Mapping[str, FileFacts], folders: Sequence[str]) -> Sequence[str]:
        self._writes.clear()
        document = Commit(0, files, folders).to_json()
        missing: list[str] = self._ask({"op": "begin", "commit": document}).result()[0]["missing"]
        return missing

    def write(self, path: str, data: bytes) -> None:
        self._writes.append(self._ask({"op": "write", "path": path}, [data]))
        if len(self._writes) >= _UNDER_WAY:
            self._writes.popleft().result()

    def finish(self) -> int:
        while self._writes:
            self._writes.popleft().result()
        return int(self._ask({"op": "finish"}).result()[0]["number"])

    def _ask(self, document: Mapping[str, Any], data: Sequence[Buffer] = ()) -> _Wait:
        return self._client.ask(self._call, {**self._named, **document}, data)
