"""All ranks are started afresh together: what is ended when, what waits, and what happens when it cannot be done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skyward._pool.collective import worker_group as module
from skyward._pool.collective.worker_group import Abort, WorkerGroup
from skyward._pool.config import PoolConfig
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward._pool.nodes.starting import WorkerSetup
from skyward._pool.nodes.worker_client import WorkerClient
from skyward.errors import PluginError, PoolError, SkywardError, WorkerLostError
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import FakePool, error, make_worker, result, sent

WAITS_S = 60.0


class FakeNode:
    """A node with one worker, which comes back when a test says so."""

    def __init__(self, index: int, worker: WorkerClient) -> None:
        self.index, self.gone, self.workers = index, cast(Any, None), [worker]
        self.setups: dict[int, Future[None]] = {}


class FakeTable:
    """The nodes of a pool, as a test says."""

    def __init__(self, nodes: list[FakeNode]) -> None:
        self.nodes, self.is_starting, self.absent = nodes, False, ""

    @property
    def alive(self) -> list[FakeNode]:
        return [node for node in self.nodes if node.gone is None]


class FakeSetup:
    """Notes which workers enter together; fails as often as it is told to."""

    def __init__(self) -> None:
        self.entered: list[list[tuple[int, int]]] = []
        self.failures: list[Exception] = []

    def enter(self, workers: list[tuple[FakeNode, WorkerClient]], _clock: object) -> None:
        self.entered.append([(worker.rank, worker.generation) for _, worker in workers])
        if self.failures:
            raise self.failures.pop(0)


def fake_call() -> Abort:
    """A call on all ranks that no rank has begun."""
    return lambda _reason: None


class Ranks:
    """Two ranks of a collective pool."""

    def __init__(self, pool: FakePool, *, collective: bool = True) -> None:
        self.pool, self.setup = pool, FakeSetup()
        self.nodes = [FakeNode(worker.rank, worker) for worker in pool.workers]
        self.table = FakeTable(self.nodes)
        settings = SimpleNamespace(
            worker=SimpleNamespace(processes=1, slots=1, buffer=0),
            nodes=SimpleNamespace(desired=2),
            plugins=[SimpleNamespace(collective=collective)],
            provision_timeout_s=WAITS_S,
        )
        self.group = WorkerGroup(
            cast(PoolConfig, settings),
            cast(NodeTable, self.table),
            pool.dispatcher,
            cast(WorkerSetup, self.setup),
            cast(Any, pool.time),
        )
        self.group.open()

    def ends(self, rank: int) -> None:
        """The worker of a rank is gone."""
        (worker,) = self.nodes[rank].workers
        worker.hung_up = True
        self.pool.lose(worker)
        self.group.worker_lost(worker)

    def returns(self, rank: int) -> WorkerClient:
        """Its successor has connected."""
        fresh = make_worker(rank, self.nodes[rank].workers[0].generation + 1, killed=self.pool.killed)
        self.nodes[rank].workers = [fresh]
        self.nodes[rank].setups[rank] = Future()
        self.group.worker_started(cast(NodeClient, self.nodes[rank]), fresh)
        return fresh

    def given_up(self, text: str) -> None:
        """A node could not be replaced in many attempts."""
        self.table.absent = text
        self.group.node_given_up()

    def killed(self) -> list[int]:
        return [worker.rank for worker in self.pool.killed]

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def ranks(make: Make) -> Ranks:
    return Ranks(make(workers=2))


def test_a_worker_that_can_be_alone_is_set_up_alone(make: Make) -> None:
    """A pool without a group replaces what has ended, and nothing else."""
    ranks = Ranks(make(workers=2), collective=False)
    ranks.ends(1)
    fresh = ranks.returns(1)
    assert ranks.setup.entered == [[(1, 1)]]
    (_, call) = ranks.pool.submit(2)
    assert sent(fresh) == [call.id]
    assert ranks.killed() == []


def test_a_rank_that_ends_takes_all_others_with_it(ranks: Ranks) -> None:
    """They enter the set-up together; calls wait until it is done."""
    ranks.ends(1)
    (call,) = ranks.pool.submit(1)
    ranks.until(lambda: ranks.killed() == [0])
    assert sent(ranks.pool.workers[0]) == []
    ranks.returns(1)
    ranks.ends(0)
    assert ranks.setup.entered == []
    fresh = ranks.returns(0)
    ranks.until(lambda: sent(fresh) == [call.id])
    assert ranks.setup.entered == [[(0, 1), (1, 1)]]


def test_a_call_of_its_own_is_let_finish(ranks: Ranks) -> None:
    """It is none of the group's business; one that had not begun behind it is taken back and runs afterwards."""
    ranks.pool.dispatcher.submit(tasks := [ranks.pool.task(pin=0), ranks.pool.task(pin=0)])
    running, waiting = tasks
    ranks.group.restart("a test wants it")
    ranks.until(lambda: ranks.killed() == [1])
    old = ranks.pool.workers[0]
    assert set(sent(old, Kind.RECALL)) == {waiting.id}
    ranks.pool.say(old, Frame(Kind.DROPPED, waiting.id))
    time.sleep(0.1)
    assert ranks.killed() == [1]
    ranks.pool.say(old, result(running, "done"))
    ranks.until(lambda: ranks.killed() == [1, 0])
    for rank in (0, 1):
        ranks.ends(rank)
    fresh = [ranks.returns(rank) for rank in (0, 1)]
    ranks.until(lambda: sent(fresh[0]) == [waiting.id])
    assert running.value() == "done"


def test_a_stopped_call_that_hangs_is_ended_after_a_moment(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had its chance to heed the interrupt."""
    monkeypatch.setattr(module, "HEED_S", 0.2)
    ranks.pool.dispatcher.submit([stuck := ranks.pool.task(pin=0)])
    ranks.group.hold()
    ranks.pool.dispatcher.cancel(stuck)
    began = time.monotonic()
    ranks.group.restart("it failed")
    ranks.until(lambda: sorted(ranks.killed()) == [0, 1])
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    "error",
    [
        WorkerLostError("lost in set-up", node=1, rank=1),
        PluginError(
            "Plugin 'torch': its around_app hook failed when it was entered: PluginError: gather('torch: port'): the "
            "client is gone, or this worker is to end."
        ),
    ],
    ids=["its loss", "its last words"],
)
def test_a_rank_lost_during_the_set_up_makes_it_begin_again(ranks: Ranks, error: SkywardError) -> None:
    """All processes of the failed attempt are ended. A node that is told to end may say so before its end is known."""
    ranks.setup.failures = [error]
    ranks.group.restart("it failed")
    ranks.until(lambda: sorted(ranks.killed()) == [0, 1])
    for _ in range(2):
        for rank in (0, 1):
            ranks.ends(rank)
        fresh = [ranks.returns(rank) for rank in (0, 1)]
        ranks.until(lambda: len(ranks.killed()) == 4)
    calls = ranks.pool.submit(2)
    ranks.until(lambda: [sent(worker) for worker in fresh] == [[call.id] for call in calls])
    assert ranks.setup.entered == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]


def test_a_set_up_that_fails_ends_the_pool_with_its_reason(ranks: Ranks) -> None:
    """Calls that wait and calls that come later are told the same."""
    ranks.setup.failures = [PluginError("no port for the group")]
    ranks.group.restart("train() had failed on some of them")
    (waiting,) = ranks.pool.submit(1)
    ranks.until(lambda: sorted(ranks.killed()) == [0, 1])
    for rank in (0, 1):
        ranks.ends(rank)
        ranks.returns(rank)
    ranks.until(lambda: waiting.done)
    for attempt in (waiting.value, lambda: ranks.pool.submit(1)):
        with pytest.raises(PoolError, match=r"because train\(\) had failed on some of them.*no port for the group"):
            attempt()


def test_a_node_that_is_gone_cannot_come_back(ranks: Ranks) -> None:
    """The group cannot be made without it, and says so, once it is known that it will not be replaced."""
    ranks.nodes[1].gone = SimpleNamespace(text="killed")
    ranks.table.is_starting = True
    ranks.pool.lose(ranks.pool.workers[1])
    ranks.group.worker_lost(ranks.pool.workers[1])
    (waiting,) = ranks.pool.submit(1)
    ranks.until(lambda: ranks.killed() == [0])
    ranks.ends(0)
    ranks.returns(0)
    assert not waiting.done
    ranks.given_up("node 1 is gone (killed), and could not be replaced.")
    with pytest.raises(PoolError, match=r"needs all nodes: node 1 is gone \(killed\)"):
        ranks.until(lambda: not ranks.pool.submit(1))
    assert isinstance(waiting.error, PoolError)


def test_a_node_that_comes_late_brings_the_group_back(ranks: Ranks) -> None:
    """It had been given up, and calls failed; from now on they wait again, for a group with it."""
    ranks.nodes[1].gone = SimpleNamespace(text="killed")
    ranks.table.is_starting = True
    ranks.pool.lose(ranks.pool.workers[1])
    ranks.group.worker_lost(ranks.pool.workers[1])
    ranks.until(lambda: ranks.killed() == [0])
    ranks.ends(0)
    ranks.returns(0)
    ranks.given_up("node 1 is gone (killed), and could not be replaced.")
    with pytest.raises(PoolError):
        ranks.until(lambda: not ranks.pool.submit(1))
    fresh = make_worker(1, 5)
    ranks.nodes[1] = FakeNode(1, fresh)
    ranks.nodes[1].setups[1] = Future()
    ranks.table.is_starting, ranks.table.absent = False, ""
    ranks.group.node_started(cast(NodeClient, ranks.nodes[1]))
    ranks.until(lambda: ranks.setup.entered)
    assert ranks.setup.entered == [[(0, 1), (1, 5)]]
    (call,) = ranks.pool.submit(1, pin=1)
    ranks.until(lambda: sent(fresh) == [call.id])


def test_calls_on_all_ranks_take_turns(ranks: Ranks) -> None:
    """The second would begin on ranks where the first has ended, and be lost with it if that fails."""
    first, second = fake_call(), fake_call()
    assert ranks.group.register(first)
    assert not ranks.group.register(second)
    ranks.group.unregister(first)
    ranks.group.wait_turn()
    assert ranks.group.register(second)


def test_nothing_is_started_afresh_once_the_pool_closes(ranks: Ranks) -> None:
    """What waits for ranks to come back does not hold the end of the pool up."""
    ranks.group.restart("it failed")
    ranks.until(lambda: sorted(ranks.killed()) == [0, 1])
    assert ranks.group.close()
    ranks.until(lambda: not ranks.group._restarting)
    for rank in (0, 1):
        ranks.ends(rank)
    assert ranks.setup.entered == []


def test_a_function_can_make_a_pool_collective(make: Make) -> None:
    """From its first call on all ranks they are one group, whose members cannot be replaced alone."""
    ranks = Ranks(make(workers=2), collective=False)
    member = fake_call()
    ranks.group.register(member)
    ranks.group.unregister(member)
    ranks.ends(1)
    ranks.until(lambda: ranks.killed() == [0])


@pytest.mark.parametrize("comes", ["worker", "node"])
def test_a_rank_lost_before_the_first_call_of_a_group_comes_back_alone(make: Make, comes: str) -> None:
    """Nobody starts the others afresh for it, so that it must not wait for them; found by the simulator (seed 5145)."""
    ranks = Ranks(make(workers=2), collective=False)
    ranks.ends(1)
    assert ranks.group.register(fake_call())
    (call,) = ranks.pool.submit(1, pin=1)
    if comes == "worker":
        fresh = ranks.returns(1)
    else:
        ranks.nodes[1] = FakeNode(1, fresh := make_worker(1))
        ranks.group.node_started(cast(NodeClient, ranks.nodes[1]))
    assert sent(fresh) == [call.id]
    assert ranks.killed() == []


def test_a_call_on_all_ranks_does_not_meet_one_that_was_stopped(ranks: Ranks) -> None:
    """A single call that is still in a collective would take the others' first one for its own."""
    pool = ranks.pool
    (alone,) = pool.submit(1)
    assert ranks.group.register(fake_call())  # it works beside others
    ranks.group.unregister(next(iter(ranks.group._under_way)))
    pool.dispatcher.cancel(alone)
    member = fake_call()
    assert not ranks.group.register(member)
    (worker,) = (worker for worker in pool.workers if alone.id in worker.outstanding)
    answer = threading.Timer(0.1, lambda: pool.say(worker, error(alone, KeyboardInterrupt())))
    answer.start()
    ranks.group.wait_turn()
    answer.join()
    assert ranks.group.register(member)


def test_a_node_that_comes_in_anothers_place_is_awaited(ranks: Ranks) -> None:
    """As long as it takes; the group is then made again, with fresh processes everywhere."""
    ranks.nodes[1].gone = SimpleNamespace(text="killed")
    ranks.table.is_starting = True
    ranks.ends(1)
    ranks.until(lambda: ranks.killed() == [0])
    ranks.ends(0)
    ranks.returns(0)
    assert ranks.setup.entered == []
    fresh = make_worker(1)
    ranks.nodes[1] = FakeNode(1, fresh)
    ranks.group.node_started(cast(NodeClient, ranks.nodes[1]))
    ranks.table.is_starting, ranks.table.absent = False, ""
    ranks.until(lambda: ranks.setup.entered)
    assert ranks.setup.entered == [[(0, 1), (1, 0)]]
    calls = ranks.pool.submit(2)
    ranks.until(lambda: sent(fresh) == [calls[1].id])


def test_a_node_that_joins_a_plain_pool_is_set_up_alone(make: Make) -> None:
    """Nobody else is disturbed."""
    ranks = Ranks(make(workers=2), collective=False)
    ranks.ends(1)
    ranks.nodes[1] = FakeNode(1, fresh := make_worker(1))
    ranks.group.node_started(cast(NodeClient, ranks.nodes[1]))
    assert ranks.setup.entered == [[(1, 0)]]
    (_, call) = ranks.pool.submit(2)
    assert sent(fresh) == [call.id]


def test_a_group_of_which_a_node_leaves_finishes_its_call_first(ranks: Ranks) -> None:
    """No other call on all ranks begins before the group is made again."""
    member = fake_call()
    assert ranks.group.register(member)
    drained = threading.Thread(target=ranks.group.drain_node, args=(ranks.nodes[1], lambda: WAITS_S))
    drained.start()
    ranks.until(lambda: ranks.group._draining)
    assert not ranks.group.register(fake_call())
    assert drained.is_alive()
    ranks.group.unregister(member)
    drained.join(WAITS_S)
    assert not drained.is_alive()
    assert not ranks.group.register(fake_call())
    waits = threading.Thread(target=ranks.group.wait_turn, daemon=True)
    waits.start()
    old = ranks.pool.workers[1]
    ranks.pool.lose(old)
    ranks.nodes[1] = FakeNode(1, make_worker(1))
    ranks.group.node_started(cast(NodeClient, ranks.nodes[1]))
    ranks.group.node_drained(cast(NodeClient, ranks.nodes[1]))
    ranks.until(lambda: ranks.killed() == [0])
    ranks.ends(0)
    ranks.returns(0)
    ranks.until(lambda: ranks.setup.entered == [[(0, 1), (1, 0)]])
    waits.join(WAITS_S)
    assert not waits.is_alive()
    assert ranks.group.register(fake_call())
