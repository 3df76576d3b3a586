"""Python's logging on nodes: records go to the client as data, with their level, call and exception; texts masked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from skyward.runner import process
from skyward.runtime import masking
from skyward.runtime.masking import Masks
from skyward.runtime.output import muted, task_output
from skyward.wire.messages import STDOUT, Kind, encode
from tests.unit.runner.node import RunningNode

Sent = list[tuple[int | None, dict[str, Any]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """What goes to the client of the loggers of this process, as if it were a worker's."""
    monkeypatch.setattr(logging, "lastResort", None)
    root = logging.getLogger()
    handlers, level, found = root.handlers[:], root.level, list[tuple[int | None, dict[str, Any]]]()
    root.handlers[:] = []
    process.send_logs(logging.INFO, lambda call, record: found.append((call, record)))
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)


def _logger(name: str) -> logging.Logger:
    """A logger that pytest's handlers do not hear."""
    logger = logging.getLogger(f"of-this-test.{name}")
    logger.propagate = False
    logger.handlers.clear()
    return logger


def test_records_are_sent_from_the_clients_level_on(sent: Sent) -> None:
    with task_output(7):
        _logger("train").info("epoch %d", 3)
        _logger("train").debug("too much")

    ((call, record),) = sent
    assert call == 7
    assert (record["name"], record["level"], record["text"]) == ("of-this-test.train", logging.INFO, "epoch 3")
    assert record["line"] == "INFO:of-this-test.train:epoch 3" and record["function"].startswith(
        "test_records_are_sent"
    )
    assert encode(record)  # plain data


def test_secrets_are_masked_and_muted_calls_send_nothing(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "current", Masks(["hush-hush"]))
    _logger("y").warning("a hush-hush %s", "hush-hush")
    with muted(frozenset({"stderr"})):
        _logger("y").warning("nobody hears it")

    ((_, record),) = sent
    assert (record["text"], record["line"]) == ("a *** ***", "WARNING:of-this-test.y:a *** ***")


def test_a_worker_sends_records_and_its_agent_masks_what_it_writes_below_python(node: RunningNode) -> None:
    """The agent learns the secrets over its own connection."""
    client = node.client()
    client.tell(Kind.MASK, values=["hush-hush"])
    client.ping_s()
    node.do("import os, time; os.write(1, b'a hush'); time.sleep(0.3); os.write(1, b'-hush b\\nhus')")
    node.do("import os; os.write(1, b'h-hush again\\n'); os.kill(os.getpid(), 9)")

    pieces = client.output(until="again")
    assert {(worker, stream) for worker, stream, _ in pieces} == {(0, STDOUT)}
    assert "".join(text for _, _, text in pieces) == "a *** b\n*** again\n"
    assert client.document(Kind.WORKER_EXIT)["log"] == "a *** b\n*** again\n"
