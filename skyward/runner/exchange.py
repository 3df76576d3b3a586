"""Requests of calls to the client over their connection: values gathered from all ranks, and checkpoints.

The thread of the call sleeps until the thread that reads the socket passes it the answer. It is also woken when the
client disconnects and when the worker is to end, so that no call waits for an answer that cannot come.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from skyward.errors import CheckpointError, PluginError
from skyward.model.instance import SETUP
from skyward.runtime.checkpoint import Store
from skyward.runtime.checkpoint_store import pack, unpack
from skyward.system import SimpleQueue, threading
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import Kind, decode, encode

_NO_ANSWER = "the client has disconnected, or this worker is ending."
CHECKPOINTS = ".skyward-checkpoints"  # below the node's working directory


class Requests:
    """The pending requests of one worker process, by call and number.

    Args:
        send: sends a frame to the client; returns whether an answer can come.
        running: the id of the call that the calling thread belongs to, `SETUP` while plugins are set up, None
            otherwise; and the ids of all running calls.
        root: directory in which the directories of checkpoints are created.
    """

    def __init__(
        self, send: Callable[[Frame], bool], running: Callable[[], tuple[int | None, Collection[int]]], root: Path
    ) -> None:
        self._send, self._running, self._root = send, running, root
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may make a request while its thread makes one
        self._waits: dict[tuple[int, int, int], SimpleQueue[Frame | None]] = {}
        self._rounds: dict[int, int] = {}  # gathers so far, by call
        self._checkpoints = 0  # requests so far

    def take(self, frame: Frame) -> None:
        """Pass an answer to the thread that waits for it; do nothing if none waits any more."""
        document = decode(frame.head)
        with self._lock:
            wait = self._waits.pop((frame.kind, frame.id, document.get("round") or document["request"]), None)
        if wait is not None:
            wait.put(frame)

    def abandon(self) -> None:
        """Fail all pending requests, since no answer will come."""
        with self._lock:
            waits, self._waits = tuple(self._waits.values()), {}
        for wait in waits:
            wait.put(None)

    def _ask(self, answer: Kind, frame: Frame, number: int) -> tuple[dict[str, Any], Sequence[Buffer]]:
        """Send a request, block until it is answered, and return the answer; with "error" if it has failed."""
        wait = SimpleQueue[Frame | None]()
        key = (answer, frame.id, number)
        with self._lock:
            self._waits[key] = wait
        try:
            if not self._send(frame):
                self.abandon()
            found = wait.get()
        finally:
            with self._lock:
                self._waits.pop(key, None)
        return ({"error": _NO_ANSWER}, ()) if found is None else (decode(found.head), found.buffers)

    def gather(self, value: Any, name: str, timeout_s: float | None) -> list[Any]:
        """Return the values of all ranks; see `skyward.runtime.ranks.gather`."""
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
        with self._lock:
            self._rounds = {known: count for known, count in self._rounds.items() if known in all_running}
            number = self._rounds[call] = self._rounds.get(call, 0) + 1
        head = encode({"name": name, "round": number, "timeout_s": timeout_s})
        answer, packed = self._ask(Kind.GATHERED, Frame(Kind.GATHER, call, head, [data, *buffers]), number)
        if "error" in answer:
            raise PluginError(f"gather({name!r}): {answer['error']}")
        return _values(answer["parts"], packed, name)

    def begin_setup(self) -> None:
        """Restart the count of the set-up's gathers, as the other ranks do."""
        with self._lock:
            self._rounds.pop(SETUP, None)

    def store(self, name: str, rank: int | None) -> Store:
        """See `skyward.runtime.checkpoint.Worker`."""
        call, _ = self._running() if os.getpid() == self._process else (None, ())
        if call is None or call == SETUP:
            raise CheckpointError(
                f"checkpoint({name!r}) was called where no call runs, in a process forked from a worker, or in a "
                "thread that belongs to none of several calls. Call it in the call's own thread."
            )
        return _RemoteStore(self, call, {"name": name, "rank": rank})

    def directory(self) -> Path:
        """See `skyward.runtime.checkpoint.Worker`."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        for left in self._root.iterdir():
            if _is_gone(int(left.name.partition(".")[0])):
                shutil.rmtree(left, ignore_errors=True)  # another worker of the node may do the same
        return Path(tempfile.mkdtemp(dir=self._root, prefix=f"{os.getpid()}."))

    def ask_store(
        self, call: int, document: Mapping[str, Any], data: Sequence[Buffer]
    ) -> tuple[dict[str, Any], Sequence[Buffer]]:
        """Send a request to the client's store of checkpoints, and return its answer.

        Raises:
            CheckpointError: the request failed, or the client has disconnected.
        """
        with self._lock:
            self._checkpoints += 1
            number = self._checkpoints
        head = encode({**document, "request": number})
        answer, content = self._ask(Kind.CHECKPOINTED, Frame(Kind.CHECKPOINT, call, head, data), number)
        if (error := answer.get("error")) == _NO_ANSWER:
            raise CheckpointError(f"A checkpoint could not be read or written: {error}")
        if error:
            raise CheckpointError(error)
        return answer, content


def _values(sizes: Sequence[int], packed: Sequence[Buffer], name: str) -> list[Any]:
    """Return the ranks' values from their pickles, each followed by its buffers; `sizes` are the parts of each rank."""
    values, start = [], 0
    for parts in sizes:
        data, *buffers = packed[start : start + parts]
        values.append(payload.loads(data, buffers, what=f"A value of gather({name!r})"))
        start += parts
    return values


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


class _RemoteStore:
    """The client's store of one checkpoint, for one call; also the file that an archive is written to or read from."""

    def __init__(self, client: Requests, call: int, named: Mapping[str, Any]) -> None:
        self._client, self._call, self._named = client, call, named
        self._name, self._number, self._offset = str(named["name"]), 0, 0

    def last(self) -> int:
        return int(self._answer({"op": "last"})[0]["number"])

    def fill(self, number: int, target: Path) -> None:
        if number:
            self._number, self._offset = number, 0
            try:
                unpack(cast(IO[bytes], self), target)
            except (OSError, tarfile.TarError) as error:
                raise CheckpointError(f"checkpoint({self._name!r}) cannot be written to {target}: {error}") from error

    def commit(self, source: Path) -> int:
        self._offset = 0
        try:
            pack(source, cast(IO[bytes], self))
        except (OSError, tarfile.TarError) as error:
            raise CheckpointError(f"checkpoint({self._name!r}) cannot be read from {source}: {error}") from error
        return int(self._answer({"op": "finish"})[0]["number"])

    def read(self, _size: int) -> bytes:
        data = bytes(self._answer({"op": "read", "number": self._number, "offset": self._offset})[1][0])
        self._offset += len(data)
        return data

    def write(self, data: bytes) -> int:
        self._answer({"op": "write", "offset": self._offset}, [data])
        self._offset += len(data)
        return len(data)

    def _answer(
        self, document: Mapping[str, Any], data: Sequence[Buffer] = ()
    ) -> tuple[dict[str, Any], Sequence[Buffer]]:
        return self._client.ask_store(self._call, {**self._named, **document}, data)
