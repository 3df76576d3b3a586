"""A node that is ended while its pool goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from skyward.errors import EngineError, WorkerLostError
from skyward.model.spec import Worker
from skyward.pool.node import NodeLink
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
    node = NodeLink(0, cast(Any, None), cast(Any, SimpleNamespace(remove=remove)), Worker(), cast(Any, link), key=b"k")
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
