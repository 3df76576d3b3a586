"""`PoolLink`: the objects of a pool that its nodes use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skyward._pool.background import Callbacks
from skyward._pool.console import Printer
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.nodes.worker_client import WorkerClient
from skyward.records.pools import PoolRecord

if TYPE_CHECKING:
    from skyward._pool.nodes.node_client import NodeClient


@dataclass(frozen=True, slots=True)
class PoolLink:
    """What a node shares with its pool."""

    dispatcher: Dispatcher
    printer: Printer
    callbacks: Callbacks
    record: PoolRecord
    worker_started: Callable[[NodeClient, WorkerClient], None]  # sets up a worker that was started again
    worker_lost: Callable[[WorkerClient], None]  # is told that a worker has ended, after its calls have been settled
    node_gone: Callable[[NodeClient], None]  # is told that a node is gone, after its calls have been settled
    dismissed: Callable[[], None]  # is told that another client has ended the pool
    secrets: tuple[str, ...] = field(default=(), repr=False)  # values that its nodes mask in what they print
    only_data: bool = False  # whether exceptions of its nodes come as text
