"""Ranks enter their plugins together: the first error counts, late ones are named, nobody waits alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

import skyward as sky
from skyward._pool.background import Timers
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.starting import WorkerSetup
from skyward._pool.nodes.worker_client import WorkerClient
from skyward.errors import PluginError, WorkerLostError
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, encode
from tests.unit.pool.fakes import fake, make_worker

PLUGIN = sky.Plugin.create("mesh").with_decorator(lambda fn: fn)


class FakeNode:
    """A node of which only the set-ups of its workers are looked at."""

    def __init__(self) -> None:
        self.setups: dict[int, Future[None]] = {}

    def dump(self, worker: WorkerClient) -> Future[str]:
        """What the agent finds out: nothing of the second rank."""
        found: Future[str] = Future()
        if worker.rank != 1:
            found.set_result('Current thread 0x1 (most recent call first):\n  File "/srv/mesh.py", line 7 in join\n')
        return found


class Start:
    """A pool's workers that are about to be set up."""

    def __init__(self, clock: Timers, ranks: int = 2, **wishes: Any) -> None:
        pool = sky.ComputePool(sky.Local(), nodes=ranks, display="quiet", **{"plugins": [PLUGIN], **wishes})
        self.clock = clock
        self.setup = WorkerSetup(pool._settings, pool._image())
        self.nodes = [FakeNode() for _ in range(ranks)]
        self.workers = [make_worker(rank) for rank in range(ranks)]
        for rank, node in enumerate(self.nodes):
            node.setups[rank] = Future()

    def pairs(self, *ranks: int) -> list[tuple[NodeClient, WorkerClient]]:
        return [(cast(NodeClient, self.nodes[rank]), self.workers[rank]) for rank in ranks]

    def outcome(self, rank: int) -> Future[None]:
        return self.nodes[rank].setups[rank]

    def enter(self, *ranks: int) -> Callable[[], BaseException | None]:
        """Enter in a thread; the returned function waits for its end and gives its error."""
        end: list[BaseException | None] = []

        def run() -> None:
            try:
                self.setup.enter(self.pairs(*ranks), self.clock)
                end.append(None)
            except BaseException as error:
                end.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def wait() -> BaseException | None:
            thread.join(60)
            assert not thread.is_alive()
            return end[0]

        return wait


@pytest.fixture
def clock() -> Iterator[Timers]:
    clock = Timers()
    yield clock
    clock.stop()


def sent(worker: WorkerClient, kind: Kind) -> list[Frame]:
    return [frame for frame in fake(worker).sent if frame.kind == kind]


def give(worker: WorkerClient, frame: Frame) -> None:
    assert worker.gather is not None
    worker.gather.give(worker.rank, worker.connection, frame)


NOTICED = PluginError("Plugin 'mesh': its around_app hook failed: RuntimeError: gloo/ Connection closed by peer [1]")


def test_what_a_rank_noticed_gives_way_to_what_happened(clock: Timers) -> None:
    """A connection to a killed rank breaks before its end is known."""
    start = Start(clock, ranks=3)
    wait = start.enter(0, 1, 2)
    start.outcome(0).set_exception(NOTICED)
    start.outcome(2).set_exception(WorkerLostError("It was killed.", node=2, rank=2))

    assert isinstance(wait(), WorkerLostError)


def test_late_ranks_are_named_with_what_the_others_wait_for(clock: Timers) -> None:
    """Of a rank that waits for the late one it is said where."""
    start = Start(clock, ranks=3, provision_timeout=1.0)
    wait = start.enter(0, 1, 2)
    start.outcome(1).set_result(None)
    while not sent(start.workers[0], Kind.SETUP):
        pass
    head = encode({"name": "port", "round": 1, "timeout_s": None})
    give(start.workers[0], Frame(Kind.GATHER, 0, head))
    error = wait()

    assert isinstance(error, PluginError)
    # rank 1 was done without the gather, which rank 0 was told at once; so only what is not done is late
    assert "The plugins (mesh) were not set up on rank 0 (node 0), rank 2 (node 2) within 1 s." in str(error)
    assert "provision_timeout=" in str(error)
    assert 'rank 0 (node 0), rank 2 (node 2) was here:\n  File "/srv/mesh.py", line 7, in join' in str(error)


def test_what_is_to_be_baked_is_sent_where_there_is_no_image(clock: Timers, tmp_path: Path) -> None:
    """As to the processes of sky.Local; programs are named."""
    (tmp_path / "tool.sh").write_text("exit 3")
    (tmp_path / "tool.sh").chmod(0o755)
    image = sky.Image(includes=[str(tmp_path / "tool.sh")], bake=True)
    start = Start(clock, plugins=[], image=image)
    start.setup.include(image)

    assert start.enter(0, 1)() is None
    (frame,) = sent(start.workers[0], Kind.CODE)
    assert payload.loads(frame.head, frame.buffers) == ((("tool.sh", b"exit 3"),), {"tool.sh"}, set())
