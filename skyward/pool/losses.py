"""What became of the calls of a worker that is lost: which had begun, which had not, and of which nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from skyward.pool.task import Task
from skyward.pool.worker import WorkerLink
from skyward.wire.messages import Kind


class Fate(Enum):
    """How far a call had come on a worker that is lost."""

    WAITED = "had not begun"
    RAN = "was running"
    MAY_HAVE_RUN = "may have run"


def fates(worker: WorkerLink, *, is_known: bool) -> Iterator[tuple[Task, Fate]]:
    """The calls that the worker had been given and not answered, each with its fate.

    Args:
        worker: it is gone, and everything of it that has arrived was read.
        is_known: whether its process is known to have ended, and everything it had sent has arrived. Then the calls it
            has not answered are the ones it ran, at most as many as it has slots, and after them those it had not
            begun: it takes them in order. Where the node or the way to it fell silent, answers may be lost.
    """
    unsent = worker.connection.unsent(Kind.CALL)
    for position, task in enumerate(worker.outstanding.values()):
        if task.id in unsent or worker.stale or (is_known and position >= worker.slots and task.stream is None):
            yield task, Fate.WAITED
        elif is_known or task.stream is not None:
            yield task, Fate.RAN
        else:
            yield task, Fate.MAY_HAVE_RUN
