"""Values that several calls have in common, and which of them each node holds: it is sent each once.

`series.py` makes them, `runner/shared.py` is the other end.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from skyward.runner.shared import DIGEST_BYTES, KEEP, LEAVE, TAKE
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind

BUDGET = 512 * 1024 * 1024  # bytes of values that are kept, here and on a node, although no call needs them now


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it is sent: a snapshot, so that what the caller does to the original later is not sent."""

    digest: bytes
    head: bytes = field(repr=False)
    buffers: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, obj: object) -> Value:
        """The snapshot of an object.

        Raises:
            SerializationError: it cannot be pickled.
        """
        head, views = payload.dumps(obj, what="A large argument")
        buffers = tuple(map(bytes, views))
        digest = hashlib.blake2b(head, digest_size=DIGEST_BYTES)
        for buffer in buffers:
            digest.update(buffer)
        return cls(digest.digest(), head, buffers)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return len(self.head) + sum(map(len, self.buffers))


class Needing(Protocol):
    """A call that has been sent."""

    @property
    def shared(self) -> tuple[Value, ...]: ...


class Holder(Protocol):
    """A worker of the node."""

    @property
    def rank(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def outstanding(self) -> Mapping[int, Needing]: ...
    def post_frame(self, frame: Frame) -> None: ...


@dataclass(slots=True)
class _Held:
    """A value that a node holds: its size, the worker that was sent it, and all workers that know of it."""

    nbytes: int
    source: Holder
    holders: list[Holder]


class Shelf:
    """What the workers of one node hold. Used under the dispatcher's lock.

    Args:
        processes: how many worker processes the node has; several of them take a value from the first that got it.
        budget: bytes it may hold beyond what the calls it has been sent need; the least recently used go first.
    """

    def __init__(self, processes: int = 1, budget: int = BUDGET) -> None:
        self._how, self._budget = LEAVE if processes > 1 else KEEP, budget
        self._held: OrderedDict[bytes, _Held] = OrderedDict()  # by digest, the least recently used first

    def messages(self, worker: Holder, values: Iterable[Value]) -> Iterator[Frame]:
        """What this worker must be sent before a call that needs these values, the call being in its `outstanding`."""
        for value in values:
            held = self._held.get(value.digest)
            if held is None or not held.source.alive:  # one that died may have left nothing for its neighbours
                others = [holder for holder in held.holders if holder.alive and holder is not worker] if held else []
                self._held[value.digest] = _Held(value.nbytes, worker, [worker, *others])
                yield Frame(Kind.SHARED, 0, bytes((self._how,)) + value.digest + value.head, value.buffers)
                self._make_room()
            elif worker not in held.holders:
                held.holders.append(worker)
                yield Frame(Kind.SHARED, 0, bytes((TAKE,)) + value.digest)
            self._held.move_to_end(value.digest)

    def _make_room(self) -> None:
        excess = sum(held.nbytes for held in self._held.values()) - self._budget
        if excess <= 0:
            return
        workers = {worker.rank: worker for held in self._held.values() for worker in held.holders if worker.alive}
        calls = [task for worker in workers.values() for task in worker.outstanding.values()]
        needed = {value.digest for task in calls for value in task.shared}
        for digest in [digest for digest in self._held if digest not in needed]:
            if excess <= 0:
                return
            held = self._held.pop(digest)
            excess -= held.nbytes
            for holder in held.holders:
                if holder.alive:
                    holder.post_frame(Frame(Kind.FORGET, 0, digest))
