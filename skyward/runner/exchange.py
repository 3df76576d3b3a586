"""Requests of calls to the client over their connection: values gathered from all ranks, and checkpoints.

The thread of the call sleeps until the thread that reads the socket passes it the answer. It is also woken when the
client disconnects and when the worker is to end, so that no call waits for an answer that cannot come.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

from skyward.errors import CheckpointError, PluginError
from skyward.model.instance import SETUP
from skyward.runtime.checkpoint import Store
from skyward.runtime.checkpoint_store import pack, unpack
from skyward.system import threading
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import Kind, decode, encode

CHECKPOINTS = ".skyward-checkpoints"  # below the node's working directory
K = TypeVar("K")


class _Wait:
    """A request that has been sent and not yet answered."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._answer: Frame | str = ""

    def end(self, answer: Frame | str) -> None:
        """Set the answer; a string is the reason why there is none."""
        self._answer = answer
        self._done.set()

    def result(self) -> Frame | str:
        """Block until it is answered, and return the answer."""
        self._done.wait()
        return self._answer


class _Requests(Generic[K]):
    """The pending requests of one worker process, by the key that their answers carry.

    Args:
        send: sends a frame to the client; returns whether an answer can come.
        running: the id of the call that the calling thread belongs to, `SETUP` while plugins are set up, None
            otherwise; and the ids of all running calls.
    """

    def __init__(
        self, send: Callable[[Frame], bool], running: Callable[[], tuple[int | None, Collection[int]]]
    ) -> None:
        self._send, self._running = send, running
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waits: dict[K, _Wait] = {}

    def take(self, frame: Frame) -> None:
        """Pass an answer to the thread that waits for it; do nothing if none waits any more."""
        document = decode(frame.head)
        with self._lock:
            wait = self._waits.pop(self._key(frame.id, document), None)
        if wait is not None:
            wait.end(document.get("error") or frame)

    def abandon(self, why: str) -> None:
        """Fail all pending requests, since no answer will come."""
        with self._lock:
            waits, self._waits = tuple(self._waits.values()), {}
        for wait in waits:
            wait.end(why)

    def _ask(self, key: K, frame: Frame) -> _Wait:
        """Send a request and return the object to wait for its answer with."""
        wait = _Wait()
        with self._lock:
            self._waits[key] = wait
        if not self._send(frame):
            self.abandon("the client is gone, or this worker is to end.")
        return wait

    def _key(self, call: int, answer: dict[str, Any]) -> K:
        raise NotImplementedError


# gathers --------------------------------------------------------------------------------------------------------------


class GatherClient(_Requests[tuple[int, int]]):
    """The gathers of one worker process, identified by call and round."""

    def __init__(
        self, send: Callable[[Frame], bool], running: Callable[[], tuple[int | None, Collection[int]]]
    ) -> None:
        super().__init__(send, running)
        self._rounds: dict[int, int] = {}  # gathers so far, by call

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
        try:
            answer = self._ask((call, number), Frame(Kind.GATHER, call, head, [data, *buffers])).result()
        finally:
            with self._lock:
                self._waits.pop((call, number), None)
        if isinstance(answer, str):
            raise PluginError(f"gather({name!r}): {answer}")
        return _values(answer, name)

    def begin_setup(self) -> None:
        """Restart the count of the set-up's gathers, as the other ranks do."""
        with self._lock:
            self._rounds.pop(SETUP, None)

    def _key(self, call: int, answer: dict[str, Any]) -> tuple[int, int]:
        return call, answer["round"]


def _values(answer: Frame, name: str) -> list[Any]:
    """Return the ranks' values from the buffers of an answer, which hold a pickle and its buffers for each rank."""
    values, start = [], 0
    for parts in decode(answer.head)["parts"]:
        data, *buffers = answer.buffers[start : start + parts]
        values.append(payload.loads(data, buffers, what=f"A value of gather({name!r})"))
        start += parts
    return values


# checkpoints ----------------------------------------------------------------------------------------------------------


class CheckpointClient(_Requests[int]):
    """The checkpoints of one worker process: reads and writes to the client's store.

    Args:
        send, running: see `_Requests`.
        root: directory in which their directories are created.
    """

    def __init__(
        self,
        send: Callable[[Frame], bool],
        running: Callable[[], tuple[int | None, Collection[int]]],
        root: Path,
    ) -> None:
        super().__init__(send, running)
        self._root = root
        self._numbers = itertools.count(1)

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
        """Send a request and return the object to wait for its answer with."""
        number = next(self._numbers)
        return self._ask(number, Frame(Kind.CHECKPOINT, call, encode({**document, "request": number}), data))

    def abandon(self, why: str) -> None:
        """See `_Requests.abandon`."""
        super().abandon(f"A checkpoint could not be read or written: {why}")

    def _key(self, _call: int, answer: dict[str, Any]) -> int:
        return answer["request"]  # type: ignore[no-any-return]

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
    """The client's store of one checkpoint, for one call; also the file that an archive is written to or read from."""

    def __init__(self, client: CheckpointClient, call: int, named: Mapping[str, Any]) -> None:
        self._client, self._call, self._named = client, call, named
        self._name, self._number, self._offset = str(named["name"]), 0, 0

    def last(self) -> int:
        return int(self._ask({"op": "last"})[0]["number"])

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
        return int(self._ask({"op": "finish"})[0]["number"])

    def read(self, _size: int) -> bytes:
        data = bytes(self._ask({"op": "read", "number": self._number, "offset": self._offset})[1][0])
        self._offset += len(data)
        return data

    def write(self, data: bytes) -> int:
        self._ask({"op": "write", "offset": self._offset}, [data])
        self._offset += len(data)
        return len(data)

    def _ask(self, document: Mapping[str, Any], data: Sequence[Buffer] = ()) -> tuple[dict[str, Any], Sequence[Buffer]]:
        """Send a request, and return the client's answer.

        Raises:
            CheckpointError: the request failed, or the client has disconnected.
        """
        answer = self._client.ask(self._call, {**self._named, **document}, data).result()
        if isinstance(answer, str):
            raise CheckpointError(answer)
        return decode(answer.head), answer.buffers
