"""The place where ranks meet, and the interface they meet on: real sockets on loopback, ranks as threads."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.plugins import _ranks
from skyward.plugins._ranks import cpus, interface_of, listen, owner_of, rendezvous, source_address

RANKS = 3


def place(node: int, head: str = "127.0.0.1") -> InstanceInfo:
    return InstanceInfo(node=node, total_nodes=RANKS, head_addr=head, head_port=0)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """Let all ranks meet, each in a thread; gather works as in a pool. Gives results or errors, in rank order."""
    together = threading.Barrier(RANKS, timeout=30)
    values: list[Any] = [None] * RANKS
    number = threading.local()

    def gather(value: Any, *, name: str, timeout_s: float | None) -> list[Any]:
        values[number.rank] = value
        together.wait()
        found = list(values)
        together.wait()
        return found

    monkeypatch.setattr(_ranks, "gather", gather)

    def one(rank: int, port: int | None) -> Any:
        number.rank = rank
        try:
            return rendezvous(place(rank), "torch", port=port if rank == 0 else None)
        except PluginError as error:
            return error

    with ThreadPoolExecutor(RANKS) as threads:
        yield lambda port=None: list(threads.map(one, range(RANKS), [port] * RANKS))


def test_all_ranks_learn_one_place_that_is_free_afterwards(ranks: Callable[..., list[Any]]) -> None:
    """The framework can open the port at once, without asking for the address of another socket to be shared."""
    found = ranks()

    assert found == [found[0]] * RANKS
    with closing(socket.socket()) as server:
        server.bind(found[0])
        server.listen()


def test_ranks_that_cannot_reach_the_head_are_named_on_all(ranks: Callable[..., list[Any]]) -> None:
    """Every rank raises the same: who could not connect to what, and where to look."""
    with closing(listen("127.0.0.1")) as server:
        closed = server.getsockname()[1]

    found = ranks(closed)

    assert len({str(error) for error in found}) == 1
    assert isinstance(found[0], PluginError)
    assert "rank 1 on node 1 (" in str(found[0])
    assert "rank 2 on node 2 (" in str(found[0])
    assert f"cannot reach rank 0 on node 0 at 127.0.0.1, TCP port {closed}. " in str(found[0])
    assert "refused" in str(found[0])
    assert "firewalls" in str(found[0])


def test_a_taken_port_is_left_alone() -> None:
    """The preferred port where it is free, another one where it is not."""
    with closing(listen("127.0.0.1")) as first:
        port = first.getsockname()[1]
        with closing(listen("127.0.0.1", port)) as second:
            assert second.getsockname()[1] != port
    with closing(listen("127.0.0.1", port)) as third:
        assert third.getsockname() == ("127.0.0.1", port)


def test_what_listens_is_not_open_to_the_world() -> None:
    """Only at the address of the head; everywhere only where the machine has no such address."""
    with closing(listen("127.0.0.2")) as server:
        assert server.getsockname()[0] == "127.0.0.2"
    with closing(listen("198.51.100.1")) as server:  # set aside for documents
        assert server.getsockname()[0] == "0.0.0.0"


def test_loopback_is_reached_over_its_own_interface() -> None:
    """The route to the head decides; a further address of an interface counts as the interface's."""
    assert source_address("127.0.0.1") == "127.0.0.1"
    assert interface_of(place(1)) == "lo"
    assert owner_of("127.0.0.9") == "lo"


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [("max 100000", 1, 8), ("200000 100000", 1, 2), ("200000 100000", 2, 2), ("50000 100000", 1, 1), ("", 2, 4)],
)
def test_a_container_is_limited_by_its_quota(
    text: str, nodes: int, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A quota is a node's own; without one it shares the machine with the others."""
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(_ranks, "_CPU_MAX", tmp_path / "cpu.max")

    assert cpus(nodes) == expected
