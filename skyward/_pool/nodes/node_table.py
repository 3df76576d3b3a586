"""`NodeTable`: the nodes of a pool, one slot per index, with its node or the state of the attempts to start one."""

from __future__ import annotations

from dataclasses import dataclass

from skyward._pool.nodes.node_client import NodeClient
from skyward.errors import PoolError
from skyward.system import threading, time

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # before the first attempts to replace a node
SLOW_S = 15.0  # before each one after them, for as long as the pool is open
SETTLED_S = 60.0  # a node that is lost sooner is replaced as slowly as if an attempt had failed


@dataclass(slots=True)
class NodeSlot:
    """One index. It has a node, or a thread that gets it one, or both while the node is about to be taken away.

    Attributes:
        node: the last one it has had.
        is_starting: whether a thread gets it a node.
        attempts: how often its node was replaced, or tried to be, in quick succession.
        failures: attempts that failed since it had a node.
        error: why the last of them has failed.
        absent: why it has no node after many attempts, "" while it has not been given up.
        ready_at: monotonic time at which its node began to serve.
    """

    index: int
    node: NodeClient | None = None
    is_starting: bool = True
    attempts: int = 0
    failures: int = 0
    error: Exception | None = None
    absent: str = ""
    ready_at: float = 0.0

    def next_wait(self) -> float:
        """Seconds until the next attempt, which is counted."""
        self.attempts += 1
        return WAITS_S[self.attempts - 1] if self.attempts <= len(WAITS_S) else SLOW_S

    def failed(self, error: Exception) -> bool:
        """Note why an attempt has failed; whether it is the one after which a node is given up."""
        self.error, self.failures = error, self.failures + 1
        return self.failures >= len(WAITS_S) and not self.absent

    def give_up(self, error: str) -> None:
        """Note that it has no node after many attempts, the last of which failed with this error."""
        why = f" ({self.node.gone.text})" if self.node is not None and self.node.gone is not None else ""
        error = error if error.endswith(".") else f"{error}."
        self.absent = (
            f"node {self.index} is gone{why}, and could not be replaced in {self.failures} attempts: {error} "
            f"The pool goes on trying every {SLOW_S:g} s."
        )

    def start_again(self) -> None:
        """Its node is lost, or about to be."""
        self.is_starting = True
        if time.monotonic() - self.ready_at > SETTLED_S:
            self.attempts = 0


class NodeTable:
    """The nodes of a pool. `NodeManager` changes it, under the lock of `changed`.

    Args:
        count: how many there should be.

    Attributes:
        changed: notified when something has.
        draining: nodes that finish their calls, with their successors in the slots or on the way.
        early: nodes that were connected before the pool was open, to be set up together.
        is_open: whether the first set-up has begun.
        closed: set when nothing is started any more.
    """

    def __init__(self, count: int) -> None:
        self.changed = threading.Condition()
        self.slots = [NodeSlot(index) for index in range(count)]
        self.draining: list[NodeClient] = []
        self.early: list[NodeClient] = []
        self.is_open = False
        self.closed = threading.Event()

    @property
    def nodes(self) -> tuple[NodeClient, ...]:
        """The last node of each index that has ever had one, in order; also those that are gone."""
        with self.changed:
            return tuple(slot.node for slot in self.slots if slot.node is not None)

    @property
    def alive(self) -> list[NodeClient]:
        """Those that are not gone."""
        return [node for node in self.nodes if node.gone is None]

    def all_nodes(self) -> list[NodeClient]:
        """The draining ones included; takes no lock, which may be held for ever in a forked process."""
        return [*(slot.node for slot in self.slots if slot.node is not None), *self.draining]

    @property
    def count(self) -> int:
        """How many nodes take calls."""
        with self.changed:
            return sum(slot.node is not None and slot.node.gone is None and not slot.is_starting for slot in self.slots)

    @property
    def is_starting(self) -> bool:
        """Whether a node is being started or replaced."""
        with self.changed:
            return any(slot.is_starting for slot in self.slots)

    @property
    def absent(self) -> str:
        """Why a node could not be had in many attempts, "" while none was given up."""
        with self.changed:
            return next((slot.absent for slot in self.slots if slot.absent), "")

    def waits_for_first_set_up(self, node: NodeClient) -> bool:
        """Note a node that is connected before the pool is open; False if the first set-up has begun."""
        with self.changed:
            if not self.is_open:
                self.early.append(node)
                self.changed.notify_all()
            return not self.is_open

    def wait_whole(self) -> None:
        """Block while nodes are being started or replaced; Ctrl-C gets through.

        Raises:
            PoolError: one was given up.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.absent or self._is_whole() or self.closed.is_set())
            absent = self.absent
        if absent:
            raise PoolError(f"A call for every node cannot be run: {absent}")

    def wait_for(self, index: int) -> NodeClient:
        """The node of an index; blocks while it is being started or replaced.

        Raises:
            PoolError: it was given up, or the pool has ended.
        """
        slot = self.slots[index]
        with self.changed:
            self.changed.wait_for(lambda: slot.absent or self._is_there(slot) or self.closed.is_set())
            if slot.node is None or slot.node.gone is not None:
                raise PoolError(f"Node {index} is not there: {slot.absent or 'the pool has ended'}.")
            return slot.node

    def _is_there(self, slot: NodeSlot) -> bool:
        return slot.node is not None and slot.node.gone is None and not slot.is_starting

    def _is_whole(self) -> bool:
        """Whether every node is there; one that is gone may not be among those that are replaced yet."""
        return not any(slot.is_starting or (slot.node and slot.node.gone is not None) for slot in self.slots)

    def is_hopeless(self, least: int, needed: int) -> bool:
        """Whether the pool cannot open any more: too many nodes have failed, or were given up; under the lock."""
        failed = sum(slot.error is not None for slot in self._not_early())
        absent = sum(bool(slot.absent) for slot in self.slots)
        return failed > len(self.slots) - least or len(self.slots) - absent < needed

    def start_error(self) -> Exception:
        """Why nodes could not be started, as one error; under the lock."""
        errors = [slot.error for slot in self._not_early() if slot.error is not None]
        if len(errors) == 1:
            return errors[0]
        kinds = {type(error) for error in errors}
        text = "\n".join(dict.fromkeys(map(str, errors)))
        try:
            return kinds.pop()(text) if len(kinds) == 1 else PoolError(text)
        except TypeError:  # a class that needs more than a message
            return PoolError(text)

    def _not_early(self) -> list[NodeSlot]:
        here = {node.index for node in self.early}
        return [slot for slot in self.slots if slot.index not in here]
