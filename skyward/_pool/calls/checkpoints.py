"""The client's side of checkpoints: keeps what functions commit, and gives it to those that follow.

Requests are served in a thread of their own, in the order in which they came: who reads a worker's socket never waits
for the disk. A worker that is lost is heard no more before its call is sent again, so that only one run of it commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from skyward._pool.calls.task import Task
from skyward.errors import CheckpointError, WireError
from skyward.records.run import run_of_process
from skyward.runtime.checkpoint import is_name
from skyward.runtime.checkpoint_store import CheckpointStore, Commit
from skyward.system import SimpleQueue, threading
from skyward.wire.frames import Buffer, Connection, Frame
from skyward.wire.messages import Kind, decode, encode

_Answer = tuple[dict[str, Any], Sequence[Buffer]]


class _Request(NamedTuple):
    task: Task
    connection: Connection
    frame: Frame


class Checkpoints:
    """The checkpoints of a pool.

    Args:
        folder: where they are kept; None for the directory of this program's run. It is made if it is missing.
        process: this process, as `nodes/process_id.py` writes it.
    """

    def __init__(self, folder: Path | None, process: str) -> None:
        self._root, self._process = folder, process
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._serving: threading.Thread | None = None
        self._stores: dict[tuple[Path, Connection, Task], CheckpointStore] = {}  # of each run of each call
        self._users: dict[Path, list[Task]] = {}

    def take(self, task: Task, connection: Connection, frame: Frame) -> None:
        """A call has sent a request; it is answered soon."""
        with self._lock:
            if self._serving is None:
                self._serving = threading.Thread(target=self._serve, name="skyward-checkpoints", daemon=True)
                self._serving.start()
        self._requests.put(_Request(task, connection, frame))

    def close(self) -> None:
        """Serve no more; what is under way is finished first."""
        with self._lock:
            serving = self._serving
        if serving is not None:
            self._requests.put(None)
            serving.join()
        for store in self._stores.values():
            store.discard()

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            data: Sequence[Buffer]
            document = decode(request.frame.head)
            try:
                answer, data = self._answer(request, document)
            except (CheckpointError, OSError) as error:
                answer, data = {"error": str(error)}, ()
            head = encode({"request": document["request"], **answer})
            with suppress(WireError):  # the worker is gone, and its reader notices the same
                request.connection.post(Frame(Kind.CHECKPOINTED, request.frame.id, head, data))
            del request, data  # a piece of a file must not live until the next request

    def _answer(self, request: _Request, asked: dict[str, Any]) -> _Answer:
        store = self._store(request, asked)
        match asked["op"]:
            case "last":
                return {"commit": store.last().to_json()}, ()
            case "read":
                return {}, [store.read(Commit(int(asked["number"])), asked["path"], int(asked["offset"]))]
            case "begin":
                commit = Commit.of_json({**asked["commit"], "number": 0})
                return {"missing": store.begin(commit.files, commit.folders)}, ()
            case "write":
                store.write(asked["path"], request.frame.buffers[0])
                return {}, ()
            case "finish":
                return {"number": store.finish()}, ()
        raise CheckpointError(f"The client was asked for {asked['op']!r} of a checkpoint, which it does not know.")

    def _store(self, request: _Request, asked: dict[str, Any]) -> CheckpointStore:
        """The store that a run of a call may use; its first request asks for the last commit."""
        task, rank = request.task, asked["rank"]
        folder = self._of(asked["name"])
        if task.pin is not None:
            folder /= f"rank-{task.pin if rank is None else int(rank)}"
        key = (folder, request.connection, task)
        if asked["op"] == "last":
            self._take(folder, task, asked["name"])
            for used in [each for each in self._stores if each[2].done or (each[0], each[2]) == (folder, task)]:
                self._stores.pop(used).discard()  # of calls that are over, and of a run of this one that was lost
            self._stores[key] = CheckpointStore(folder)
        store = self._stores.get(key)
        if store is None:
            raise CheckpointError(f"checkpoint({asked['name']!r}) is not this call's.")
        return store

    def _take(self, folder: Path, task: Task, name: str) -> None:
        """Let a call have a checkpoint, which the ranks of a broadcast may share."""
        others = [each for each in self._users.get(folder, ()) if each is not task and not each.done]
        for other in others:
            if task.broadcast is None or other.broadcast is not task.broadcast:
                raise CheckpointError(
                    f"checkpoint({name!r}) is used by another call of this pool, {other.function.name}() on "
                    f"{other.place}. Give calls that run at the same time checkpoints of different names."
                )
        self._users[folder] = [*others, task]

    def _of(self, name: str) -> Path:
        if self._root is None:
            try:
                self._root = run_of_process(self._process) / "files" / "checkpoints"
            except OSError as error:
                raise CheckpointError(
                    f"checkpoint({name!r}) is kept in the record of this program's run, which cannot be written: "
                    f"{error}. Give ComputePool(checkpoints=...) a directory of yours."
                ) from error
        if not is_name(name):
            raise CheckpointError(f"{name!r} cannot be the name of a checkpoint.")
        return self._root / name
