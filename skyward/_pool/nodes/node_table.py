"""The nodes of a pool: one slot per index, with its node or the state of the attempts to start one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.signals import listen
from skyward.errors import PoolError
from skyward.system import threading, time

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # before the first attempts to replace a node
SLOW_S = 15.0  # before each later one, as long as the pool is open
SETTLED_S = 60.0  # the loss of a younger node counts as a failed attempt


@dataclass(slots=True)
class NodeSlot:
    """Slot of one index. It has a node, or a thread that starts one, or both while the node is drained.

    Attributes:
        node: the latest node.
        is_starting: whether a thread is starting a node for it.
        attempts: number of attempts to replace its node in quick succession.
        failures: number of failed attempts since it had a node.
        error: error of the last failed attempt.
        absent: why it has no node after many attempts; "" if it has not been given up.
        ready_at: monotonic time at which its node entered service.
    """

    index: int
    node: NodeClient | None = None
    is_starting: bool = True
    attempts: int = 0
    failures: int = 0
    error: Exception | None = None
    absent: str = ""
    ready_at: float = 0.0

    @property
    def is_there(self) -> bool:
        """Whether its node takes calls."""
        return self.node is not None and self.node.gone is None and not self.is_starting

    def next_wait(self) -> float:
        """Count the next attempt, and return the seconds to wait before it."""
        self.attempts += 1
        return WAITS_S[self.attempts - 1] if self.attempts <= len(WAITS_S) else SLOW_S

    def failed(self, error: Exception) -> bool:
        """Record a failed attempt; return whether it is the one after which the node is given up."""
        self.error, self.failures = error, self.failures + 1
        return self.failures >= len(WAITS_S) and not self.absent

    def give_up(self, error: str) -> None:
        """Mark the slot as without a node after many attempts, the last of which failed with this error."""
        why = f" ({self.node.gone.text})" if self.node is not None and self.node.gone is not None else ""
        error = error if error.endswith(".") else f"{error}."
        self.absent = (
            f"node {self.index} is gone{why}, and could not be replaced in {self.failures} attempts: {error} "
            f"The pool goes on trying every {SLOW_S:g} s."
        )

    def start_again(self) -> None:
        """Prepare for a replacement, since its node is lost or about to be."""
        self.is_starting = True
        if time.monotonic() - self.ready_at > SETTLED_S:
            self.attempts = 0


class NodeTable:
    """The nodes of a pool. `NodeManager` changes it, under the lock of `changed`.

    Args:
        count: the desired number of nodes.

    Attributes:
        changed: notified of changes.
        draining: nodes that finish their calls, whose successors are in the slots or being started.
        early: nodes connected before the pool was open, to be set up together.
        is_open: whether the first set-up has begun.
        closed: set when no more nodes are started.
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
        """The latest node of each index that has had one, in order, including lost ones."""
        with self.changed:
            return tuple(slot.node for slot in self.slots if slot.node is not None)

    @property
    def alive(self) -> list[NodeClient]:
        """The nodes that are not lost."""
        return [node for node in self.nodes if node.gone is None]

    def all_nodes(self) -> list[NodeClient]:
        """Return all nodes, including draining ones, without the lock, which a forked process may never get."""
        return [*(slot.node for slot in self.slots if slot.node is not None), *self.draining]

    @property
    def count(self) -> int:
        """Number of nodes that take calls."""
        with self.changed:
            return sum(slot.is_there for slot in self.slots)

    @property
    def is_starting(self) -> bool:
        """Whether a node is being started or replaced."""
        with self.changed:
            return any(slot.is_starting for slot in self.slots)

    @property
    def absent(self) -> str:
        """Why a node could not be started in many attempts; "" if none was given up."""
        with self.changed:
            return next((slot.absent for slot in self.slots if slot.absent), "")

    def waits_for_first_set_up(self, node: NodeClient) -> bool:
        """Add a node that is connected before the pool is open; return False if the first set-up has begun."""
        with self.changed:
            if not self.is_open:
                self.early.append(node)
                self.changed.notify_all()
            return not self.is_open

    def wait_whole(self) -> None:
        """Wait while nodes are being started or replaced; Ctrl-C interrupts the wait.

        Raises:
            PoolError: a node was given up.
        """
        with self.changed:
            self._wait(lambda: self.absent or all(slot.is_there for slot in self.slots))
            if absent := self.absent:
                raise PoolError(f"A call for every node cannot be run: {absent}")

    def wait_for(self, index: int) -> NodeClient:
        """Return the node of an index, waiting while it is being started or replaced.

        Raises:
            PoolError: it was given up, or the pool is closed.
        """
        slot = self.slots[index]
        with self.changed:
            self._wait(lambda: slot.absent or slot.is_there)
            if slot.node is None or slot.node.gone is not None:
                raise PoolError(f"Node {index} is not there: {slot.absent or 'the pool has ended'}.")
            return slot.node

    def _wait(self, condition: Callable[[], object]) -> None:
        """Wait for a condition or the end of the pool; Ctrl-C interrupts the wait."""
        listen(partial(self.changed.wait_for, lambda: condition() or self.closed.is_set()))

    def is_hopeless(self, least: int, needed: int) -> bool:
        """Return whether too many nodes failed or were given up for the pool to open; called under the lock."""
        failed = sum(slot.error is not None for slot in self._not_early())
        absent = sum(bool(slot.absent) for slot in self.slots)
        return failed > len(self.slots) - least or len(self.slots) - absent < needed

    def start_error(self) -> Exception:
        """Combine the errors of nodes that could not be started into one; called under the lock."""
        errors = [slot.error for slot in self._not_early() if slot.error is not None]
        if len(errors) == 1:
            return errors[0]
        kinds = {type(error) for error in errors}
        text = "\n".join(dict.fromkeys(map(str, errors)))
        try:
            return kinds.pop()(text) if len(kinds) == 1 else PoolError(text)
        except TypeError:  # the class requires more than a message
            return PoolError(text)

    def _not_early(self) -> list[NodeSlot]:
        here = {node.index for node in self.early}
        return [slot for slot in self.slots if slot.index not in here]
