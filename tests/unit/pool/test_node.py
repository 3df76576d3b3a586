"""A node that is ended while its pool goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.worker_client import Fate
from skyward.errors import EngineError, WorkerLostError
from skyward.model.spec import Worker
from skyward.nodes.node import Exit
from tests.unit.pool.conftest import Make


@pytest.mark.parametrize("removable", [True, False])
def test_a_node_that_cannot_be_used_takes_no_calls_with_it(make: Make, removable: bool) -> None:
    """A worker of it may have been started again and have taken calls before the node turned out to be of no use."""

    def remove() -> None:
        if not removable:
            raise EngineError("the engine is gone")

    pool = make()
    (task,) = pool.submit(1)
    link = SimpleNamespace(dispatcher=pool.dispatcher)
    node = NodeClient(
        0, cast(Any, None), cast(Any, SimpleNamespace(remove=remove)), Worker(), cast(Any, link), key=b"k"
    )
    cast(Any, pool.workers[0].connection).close = lambda: None
    node._workers = {0: pool.workers[0]}
    if removable:
        node.discard()
    else:
        with pytest.raises(EngineError, match="the engine is gone"):
            node.discard()
    with pytest.raises(WorkerLostError, match="could not be used"):
        task.value()
    assert not pool.workers[0].alive


def test_a_loss_is_told_with_its_reason_first(make: Make) -> None:
    """What is not known, and what to do about it, comes after what has happened."""
    pool = make()
    (task,) = pool.submit(1)

    tell = pool.workers[0].lost_running(None, Exit(code=None, text="its host gpu1 is lost"))

    assert str(tell(task, Fate.RAN)) == "Node 0 was lost while work() ran there: its host gpu1 is lost."
    assert str(tell(task, Fate.MAY_HAVE_RUN)) == (
        "Node 0 was lost while work() had been sent there: its host gpu1 is lost. Whether work() has run is not known, "
        "and it is not called again, since its function does not say that it may run twice (@sky.compute(retries=1))."
    )
