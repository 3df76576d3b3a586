"""Nodes that cannot be started, are lost, or are about to be taken away: who is asked for others, and who is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skyward._pool.nodes import manager as module
from skyward._pool.nodes import node_table, starting
from skyward._pool.nodes.manager import NodeManager
from skyward._pool.nodes.node_table import NodeTable
from skyward.errors import NodeStartError, PoolError, ProviderError, SkywardError
from skyward.model.spec import Nodes, Worker
from skyward.nodes.node import Exit
from skyward.providers.base import PoolRequest, PreemptionNotice

PATIENCE_S = 120.0


class FakeHost:
    """A host whose nodes start, unless a test says why not."""

    def __init__(self, name: str, *failures: SkywardError) -> None:
        self.name, self.address, self.failures = name, f"at-{name}", list(failures)

    def claim_port(self) -> int:
        return 1

    def start(self, launch: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return launch


class FakeNode:
    """A node without a process."""

    def __init__(self, index: int, host: FakeHost, launch: Any, _shape: object, _link: object, *, key: bytes) -> None:
        self.index, self.host, self.place, self.key = index, host, str(launch), key
        self.gone: Exit | None = None
        self.removed = threading.Event()
        self.workers = (SimpleNamespace(rank=index),)
        self.told, self.ended = "", ""

    def open(self, _timeout_s: float) -> list[Any]:
        return []

    def beat(self) -> None:
        return

    def move(self, document: str) -> None:
        self.place = document

    def close(self, _grace_s: float) -> None:
        self.ended = "closed"

    def leave(self, _grace_s: float) -> None:
        self.ended = "left"
        self.gone = Exit(code=0)

    def declare_lost(self, reason: str) -> None:
        self.ended = reason


class FakeTopology:
    """Where nodes are, by the names of their hosts."""

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}

    def put(self, node: int, host: FakeHost) -> None:
        self.hosts[node] = host.name

    def document(self, node: int) -> str:
        return f"{node} of {sorted(self.hosts.items())}"

    def launch(self, node: int, _image: object) -> Any:
        return SimpleNamespace(compute_pool=self.document(node), key=bytes([node]))


class Rig:
    """The nodes of a pool, whose allocation, group and dispatcher note what they are asked."""

    def __init__(
        self, nodes: Nodes, spare: Sequence[FakeHost | SkywardError] = (), *, collective: bool = False
    ) -> None:
        self.spare, self.lost = list(spare), list[str]()
        self.events, self.said, self.calls = list[tuple[int, str]](), list[str](), dict[int, list[object]]()
        self.closed = list[SkywardError]()
        self.given_up, self.restored, self.released = list[int](), list[int](), 0
        settings = SimpleNamespace(
            nodes=nodes,
            worker=Worker(),
            accelerator=None,
            provision_timeout_s=PATIENCE_S,
            secrets=(),
            provider=SimpleNamespace(open=lambda _request: self),
        )
        self.collective = collective
        self.worker_started = self.worker_lost = None
        self.table = NodeTable(nodes.desired)
        request, fake = PoolRequest(pool_id="p", nodes=nodes.desired), cast(Any, self)
        self.manager = NodeManager(
            *(request, cast(Any, settings), self.table, fake, fake, cast(Any, None), cast(Any, None), self.said.append),
            record=cast(Any, SimpleNamespace(event=lambda *_, **__: None)),
        )

    def open(self, *hosts: FakeHost) -> None:
        self.manager.start(cast(Any, hosts), None)
        self.manager.open()
        self.manager.opened()

    def lose(self, index: int, code: int = 137) -> FakeNode:
        node = cast(FakeNode, self.table.nodes[index])
        node.gone = Exit(code=code, text="was killed")
        node.removed.set()
        self.manager.node_gone(cast(Any, node))
        return node

    # as the allocation
    def prepare(self, _hosts: object) -> None:
        return

    def replace(self, lost: FakeHost | None) -> FakeHost:
        self.lost.append(lost.name if lost else "nothing")
        given = self.spare.pop(0) if self.spare else ProviderError("there is none.")
        if isinstance(given, SkywardError):
            raise given
        return given

    # as the group
    def node_started(self, node: FakeNode) -> None:
        self.events.append((node.index, "joined"))

    def node_given_up(self) -> None:
        return

    def drain_node(self, _node: FakeNode, _left: Callable[[], float]) -> None:
        return

    def node_drained(self, node: FakeNode) -> None:
        self.events.append((node.index, "drained"))

    # as the dispatcher, and its `load`
    @property
    def load(self) -> Rig:
        return self

    def held(self, worker: Any) -> list[object]:
        return self.calls.get(worker.rank, [])

    def give_up(self, ranks: Sequence[int], _why: str) -> None:
        self.given_up += ranks

    def restore(self, ranks: Sequence[int]) -> None:
        self.restored += ranks

    # as both
    def close(self, reason: SkywardError | None = None) -> None:
        if reason is None:
            self.released += 1
        else:
            self.closed.append(reason)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []
    monkeypatch.setattr(starting, "NodeClient", FakeNode)
    monkeypatch.setattr(starting, "Topology", lambda *_: FakeTopology())
    monkeypatch.setattr(node_table, "WAITS_S", (0.0, 0.01, 0.02, 0.03, 0.04))
    monkeypatch.setattr(module, "_LOOK_S", 0.01)

    def rig(nodes: Nodes, *spare: FakeHost | SkywardError, collective: bool = False) -> Rig:
        made.append(Rig(nodes, spare, collective=collective))
        return made[-1]

    yield rig
    for each in made:
        each.manager.close(0.0)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def hosts(count: int) -> list[FakeHost]:
    return [FakeHost(f"h{number}") for number in range(count)]


def test_calls_for_every_node_wait_also_for_one_whose_loss_is_just_noticed(make: Callable[..., Rig]) -> None:
    """It is gone, and what is left of it is still being removed, before another is asked for."""
    rig = make(Nodes(desired=1), FakeHost("fresh"))
    rig.open(*hosts(1))
    node = cast(Any, rig.table.nodes[0])
    node.gone = Exit(code=137, text="was killed")
    waits = threading.Thread(target=rig.table.wait_whole)
    waits.start()
    waits.join(0.1)
    assert waits.is_alive()
    node.removed.set()
    rig.manager.node_gone(node)
    waits.join(PATIENCE_S)
    assert not waits.is_alive()
    assert rig.table.nodes[0].host.name == "fresh"


def test_attempts_follow_each_other_until_they_are_spent(make: Callable[..., Rig]) -> None:
    """Five of them; then the pool goes on with what it has, if that is enough, and says why a node is missing."""
    rig = make(Nodes(desired=2, min=1), *(ProviderError(f"no room, {number}") for number in range(5)))
    rig.open(*hosts(2))
    rig.lose(1)
    until(lambda: rig.given_up)
    assert len(rig.lost) >= 5
    with pytest.raises(PoolError, match=r"node 1 is gone \(was killed\).*in 5 attempts: no room, 4\. The pool goes on"):
        rig.table.wait_whole()
    assert (rig.given_up, rig.table.count) == ([1], 1)


def test_too_few_at_the_start_are_one_error_with_all_reasons(make: Callable[..., Rig]) -> None:
    """Nothing is tried again, and what was begun is released."""
    errors = [NodeStartError(f"node {number} ended.") for number in range(2)]
    rig = make(Nodes(desired=2, min=2))
    with pytest.raises(NodeStartError, match=r"node \d ended"):
        rig.open(*(FakeHost(f"h{number}", error) for number, error in enumerate(errors)))
    assert rig.released
    assert rig.lost == []


def test_reasons_are_told_together(make: Callable[..., Rig]) -> None:
    """Of several nodes that cannot be started, each says why."""
    rig = make(Nodes(desired=2))
    first, second = rig.table.slots
    first.error, second.error = NodeStartError("node 0 ended."), NodeStartError("node 1 ended.")
    assert str(rig.table.start_error()) == "node 0 ended.\nnode 1 ended."
    second.error = ProviderError("no room.")
    assert isinstance(rig.table.start_error(), PoolError)


def test_a_pool_may_be_closed_while_a_node_is_drained(make: Callable[..., Rig]) -> None:
    """Its end waits for neither of them, and the node takes no group along that is closed by then."""
    rig = make(Nodes(desired=1), FakeHost("fresh"))
    rig.open(host := FakeHost("h0"))
    old = cast(Any, rig.table.nodes[0])
    leaves, may_leave = threading.Event(), threading.Event()

    def leave(_grace_s: float) -> None:
        leaves.set()
        may_leave.wait(PATIENCE_S)

    old.leave = leave
    rig.manager.preempted(PreemptionNotice(host=cast(Any, host), text="will be taken away", left_s=PATIENCE_S))
    assert leaves.wait(PATIENCE_S)
    rig.table.wait_whole()
    (draining,) = (thread for thread in threading.enumerate() if thread.name == "skyward-drain")
    rig.manager.close(0.0)
    assert old.ended == "closed"
    may_leave.set()
    draining.join(PATIENCE_S)
    assert not draining.is_alive()
    assert (0, "drained") not in rig.events
