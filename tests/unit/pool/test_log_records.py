"""Records of nodes for handlers on the client: in order, one at a time, and a handler that fails costs its record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skyward._pool.background import Callbacks
from skyward._pool.nodes.worker_client import LogRecords, takes_records

FIELDS = {"name": "train", "level": 30, "path": "/a.py", "lineno": 3, "function": "f", "t": 1e9 + 0.25, "trace": ""}


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[logging.LogRecord], None]], None]]:
    """Attach a handler, while the test runs."""
    logger, attached = logging.getLogger("skyward.output"), list[logging.Handler]()

    def attach(emit: Callable[[logging.LogRecord], None]) -> None:
        handler = logging.Handler()
        monkeypatch.setattr(handler, "emit", emit)
        attached.append(handler)
        logger.addHandler(handler)

    yield attach
    for handler in attached:
        logger.removeHandler(handler)


def test_handlers_get_records_in_order_with_their_place(handle: Callable[[Any], None]) -> None:
    taken: list[logging.LogRecord] = []
    assert not takes_records()
    handle(taken.append)
    assert takes_records()
    callbacks = Callbacks()
    records = LogRecords(callbacks)
    for n in range(100):
        records.put({**FIELDS, "text": f"record {n} 100%s"}, node=1, rank=2, call=n)
    callbacks.drain(30)

    assert [record.getMessage() for record in taken] == [f"record {n} 100%s" for n in range(100)]
    first: Any = taken[0]
    assert (first.node, first.rank, first.call, first.name, first.levelname) == (1, 2, 0, "train", "WARNING")
    assert (first.created, first.msecs, first.pathname, first.lineno) == (1e9 + 0.25, 250, "/a.py", 3)


def test_a_handler_that_fails_loses_its_record_only(handle: Callable[[Any], None]) -> None:
    taken: list[str] = []

    def emit(record: logging.LogRecord) -> None:
        if record.getMessage() == "1":
            raise ValueError("no")
        taken.append(record.getMessage())

    handle(emit)
    callbacks = Callbacks()
    records = LogRecords(callbacks)
    for n in range(3):
        records.put({**FIELDS, "text": str(n)}, node=0, rank=0, call=None)
    callbacks.drain(30)
    assert taken == ["0", "2"]
