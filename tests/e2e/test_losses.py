"""Workers, agents and containers that end under a call: seen within two seconds, told as what it was, made good."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import WorkerLostError
from tests.e2e.conftest import IMAGE, provider_of
from tests.printed import Printed

SEEN_S = 30.0  # the calls would run for a minute; it takes less than a second on an idle machine
Containers = Callable[[str], list[Any]]
Make = Callable[..., sky.ComputePool]


@sky.compute
def place() -> tuple[int, int]:
    info = sky.instance_info()
    assert info is not None
    return info.node, os.getpid()


@sky.compute
def sleep(seconds: float) -> int:
    """Says so first, and in which process; ends with the node's number."""
    info = sky.instance_info()
    assert info is not None
    print(f"sleeping on {info.node} in {os.getpid()}.", flush=True)
    time.sleep(seconds)
    return info.node


@sky.compute
def die(how: str) -> None:
    print(f"its last words at {time.monotonic()}.", flush=True)
    time.sleep(0.05)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(10)


@pytest.fixture(scope="module")
def victim(provider_name: str) -> Iterator[sky.ComputePool]:
    """Two nodes whose workers are killed again and again."""
    with sky.ComputePool(provider_of(provider_name), nodes=2, image=IMAGE) as pool:
        yield pool


def worker_pids(pool: sky.ComputePool, node: int, containers: Containers) -> dict[str, int]:
    """Process ids, as this machine sees them, of a node's agent and worker."""
    mine = [c for c in containers(pool.id) if c.labels["skyward.node"] == str(node)]
    if not mine:
        _, worker = (place() @ pool)[node]
        return {"agent": parent_of(worker), "worker": worker}
    top = mine[0].top(ps_args="-eo pid,args")
    found = {"agent": -1, "worker": -1}
    for pid, command in top["Processes"]:
        if "skyward.runner.worker" in command:
            found["worker"] = int(pid)
        elif command.startswith("/opt/venv/bin/python"):
            found["agent"] = int(pid)
    return found


def busy(pool: sky.ComputePool, printed: Printed) -> tuple[list[Future[int]], list[int]]:
    """A long call running on each of two nodes, and the process of each as its node sees it."""
    futures = [sleep(300) > pool for _ in range(2)]
    printed.until(out="sleeping on 0 in")
    seen = printed.until(out="sleeping on 1 in").out
    pids = dict(re.findall(r"sleeping on (\d) in (\d+)\.", seen))
    return futures, [int(pids[node]) for node in "01"]


@pytest.mark.parametrize(
    ("how", "number", "code"), [("SIGKILL", 9, None), ("SIGSEGV", 11, None), ("SIGTERM", 15, None), ("exit", None, 7)]
)
def test_a_worker_that_dies_in_a_call(victim: sky.ComputePool, how: str, number: int | None, code: int | None) -> None:
    """Is seen at once, as what it was, with its last output; the node has a fresh worker soon."""
    with pytest.raises(WorkerLostError) as caught:
        die(how) >> victim
    seen = time.monotonic()
    error = caught.value
    (died,) = re.findall(r"its last words at ([\d.]+)\.", error.log)
    assert seen - float(died) < SEEN_S  # nodes have the same clock as this machine
    assert (error.signal, error.exit_code, error.oom) == (number, code, False)
    assert error.node in (0, 1)
    assert error.rank == error.node
    assert f"node {error.node} (rank {error.rank})" in str(error)
    assert (how if number else "exit status 7") in str(error)
    assert "die()" in str(error)
    assert [node for node, _ in place() @ victim] == [0, 1]
    assert victim.current_nodes() == 2


def pids_of_busy(pool: sky.ComputePool, inside: list[int], containers: Containers) -> list[dict[str, int]]:
    """As `worker_pids` of both nodes, without calling them; `inside` are the workers as their nodes see them."""
    if containers(pool.id):
        return [worker_pids(pool, node, containers) for node in (0, 1)]
    return [{"agent": parent_of(worker), "worker": worker} for worker in inside]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def next_done(futures: list[Future[Any]], within_s: float = 60) -> Future[Any]:
    """The first of these that ends."""
    done = threading.Event()
    for future in futures:
        future.add_done_callback(lambda _: done.set())
    assert done.wait(within_s)
    return next(future for future in futures if future.done())


def test_retries_run_a_lost_call_again(victim: sky.ComputePool) -> None:
    """As often as asked, on whichever worker; without them nothing runs twice."""
    marks = [f"skyward-test-{uuid.uuid4().hex}" for _ in range(2)]

    def fragile(mark: str) -> int:
        trace = Path(tempfile.gettempdir()) / mark
        times = len(trace.read_text()) if trace.exists() else 0
        trace.write_text("x" * (times + 1))
        if times == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return times

    try:
        assert sky.compute(retries=2)(fragile)(marks[0]) >> victim == 1
        with pytest.raises(WorkerLostError, match=r"@sky.compute\(retries=1\) runs such calls again"):
            sky.compute(fragile)(marks[1]) >> victim
        with pytest.raises(WorkerLostError, match=r"It had run again already \(retries=2\)"):
            sky.compute(retries=2)(die.fn)("SIGKILL") >> victim
    finally:
        for mark in marks:  # of nodes that are processes of this machine
            (Path(tempfile.gettempdir()) / mark).unlink(missing_ok=True)


def test_a_user_exception_is_never_retried(pool: sky.ComputePool) -> None:
    """Retries are for lost workers."""
    mark = f"skyward-test-{uuid.uuid4().hex}"

    @sky.compute(retries=3)
    def count(node: int) -> None:
        info = sky.instance_info()
        assert info is not None
        if info.node == node:
            with (Path(tempfile.gettempdir()) / mark).open("a") as file:
                file.write("x")
            raise ValueError

    @sky.compute
    def counted() -> str:
        info = sky.instance_info()
        assert info is not None
        return (Path(tempfile.gettempdir()) / mark).read_text() if info.node == 0 else ""

    with pytest.raises(ValueError):
        count(0) @ pool
    assert counted() @ pool == ["x", ""]
    (Path(tempfile.gettempdir()) / mark).unlink(missing_ok=True)


def test_a_stream_on_a_killed_worker_ends_with_the_error(victim: sky.ComputePool) -> None:
    """A truncated stream never looks complete."""

    @sky.compute
    def numbers() -> Iterator[int]:
        yield from range(5)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    seen = []
    with pytest.raises(WorkerLostError, match=r"numbers\(\) ran there.* A generator is not run again"):
        for number in numbers() >> victim:
            seen.append(number)  # noqa: PERF402 - what came before the error counts
    assert seen == list(range(5))


@pytest.mark.parametrize("what", ["agent", "container"])
def test_a_node_that_is_gone(
    new_pool: Make, containers: Containers, printed: Printed, provider_name: str, what: str
) -> None:
    """Is seen in under two seconds; what waits runs on the other, until another node is in its place."""
    if what == "container" and provider_name == "local":
        pytest.skip("processes have no container")
    with new_pool(nodes=2) as pool:
        futures, inside = busy(pool, printed)
        waiting = [place() > pool for _ in range(3)]
        if what == "agent":
            agent = pids_of_busy(pool, inside, containers)[1]["agent"]
            killed = time.monotonic()
            os.kill(agent, signal.SIGKILL)
        else:
            container = next(c for c in containers(pool.id) if c.labels["skyward.node"] == "1")
            container.kill()
            killed = time.monotonic()
        lost = next_done(futures)
        assert time.monotonic() - killed < SEEN_S
        error = lost.exception(0)
        assert isinstance(error, WorkerLostError)
        assert (error.node, error.rank, error.signal) == (1, 1, 9)
        assert str(error).startswith("Node 1 was ")
        assert "SIGKILL" in str(error)
        assert "sleeping on 1" in error.log

        (other,) = [future for future in futures if future is not lost]
        other.cancel()
        assert {future.result(60)[0] for future in waiting} <= {0, 1}
        assert [node for node, _ in place() @ pool] == [0, 1]
        assert pool.current_nodes() == 2
    assert containers(pool.id) == []


def test_a_pool_whose_last_node_is_gone(new_pool: Make, containers: Containers, printed: Printed) -> None:
    """The running call fails with the loss, the waiting one runs on the node that takes its place."""
    with new_pool() as pool:
        pids = worker_pids(pool, 0, containers)
        running, waiting = sleep(60) > pool, place() > pool
        killed = time.monotonic()
        os.kill(pids["agent"], signal.SIGKILL)
        error = running.exception(60)
        assert time.monotonic() - killed < SEEN_S
        assert isinstance(error, WorkerLostError)
        assert waiting.result(60)[0] == 0
    assert "Starting a replacement; calls that ran there run again only if they have retries=." in printed.read().err
    assert containers(pool.id) == []


def test_out_of_memory_is_told(provider_name: str, engine: Any) -> None:
    """A call that takes more than its node may have ends with an error that says so; the node goes on."""
    if provider_name == "local":
        pytest.skip("processes have no memory limit")
    if not engine.info().get("MemoryLimit"):
        pytest.skip("this engine cannot limit memory")

    @sky.compute
    def hoard() -> int:
        return len([bytearray(b"x" * 2**24) for _ in range(64)])

    with sky.ComputePool(provider_of(provider_name), image=IMAGE, memory=0.3) as pool:
        with pytest.raises(WorkerLostError) as caught:
            hoard() >> pool
        assert caught.value.oom
        assert caught.value.signal == 9
        assert "memory" in str(caught.value)
        assert (place() >> pool)[0] == 0
