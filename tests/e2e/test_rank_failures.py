"""One rank fails: the others are stopped, one error says what happened where, and the pool can be used again."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward._pool.collective import lone_calls, worker_group
from skyward.errors import PoolError, TaskTimeoutError, WorkerLostError
from tests.e2e.conftest import IMAGE, provider_of
from tests.e2e.failing_functions import (
    counted,
    fails_later,
    fails_on,
    fails_together,
    falls_alone,
    falls_once,
    ignores_its_end,
    members,
    noted,
    notes,
    pid,
    ring,
    ring_once,
    waits_in,
    yields_until,
)
from tests.printed import Printed

STOPPED_S = 45.0  # ranks that were not stopped would run for a minute or more; it takes 2 s on an idle machine
Make = Callable[..., sky.ComputePool]
Containers = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def ringed(provider_name: str) -> Iterator[sky.ComputePool]:
    """Two ranks that form one group."""
    with sky.ComputePool(provider_of(provider_name), nodes=2, image=IMAGE, plugins=[ring()]) as pool:
        yield pool


def told(error: BaseException) -> str:
    """All that a user sees of an error, its remote traceback excepted."""
    return "".join(traceback.format_exception_only(error))


def whole(pool: sky.ComputePool) -> list[int]:
    """Check that all ranks are one group, and give their processes."""
    answers = members() @ pool
    pids = [process for process, _, _ in answers]
    expected = list(enumerate(pids))
    assert [gathered for _, gathered, _ in answers] == [expected] * len(pids)
    assert [met for _, _, met in answers] == [repr(expected)] * len(pids)
    return pids


def all_differ(now: list[int], before: list[int]) -> bool:
    """Whether each rank has another process; those of two containers may have the same number."""
    return all(process != earlier for process, earlier in zip(now, before, strict=True))


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("raise", LookupError, ["row 7 is missing", "raised by fails_on() on node 1", "rank 1 (node 1) failed first"]),
        ("kill", WorkerLostError, ["node 1 (rank 1)", "signal 9 (SIGKILL)"]),
        ("exit", WorkerLostError, ["node 1 (rank 1)", "exit status 7"]),
    ],
)
def test_one_rank_fails_and_the_pool_is_whole_again(
    ringed: sky.ComputePool, how: str, kind: type[Exception], words: list[str]
) -> None:
    """The error names rank, node and how; it shows where the other rank was; all processes are new, one group."""
    before = whole(ringed)
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        fails_on(1, how) @ ringed
    assert time.monotonic() - began < STOPPED_S

    text = told(caught.value)
    for expected in [*words, "rank 0 (node 0) was here:", "in fails_on", "wait_for_peers()  # here they are"]:
        assert expected in text
    assert "skyward/runner" not in text
    if isinstance(caught.value, WorkerLostError):
        assert (caught.value.node, caught.value.rank) == (1, 1)
    assert all_differ(whole(ringed), before)


@pytest.mark.parametrize("noticed", ["plain", "wrapped"])
def test_what_a_peer_noticed_does_not_hide_the_culprit(ringed: sky.ComputePool, noticed: str) -> None:
    """The broken connection is told of first, also inside an error of the user's; the rank that ended is named."""
    with pytest.raises(WorkerLostError, match="exit status 9") as caught:
        fails_later(1, noticed) @ ringed

    text = told(caught.value)
    assert "rank 1 (node 1) failed first" in text
    assert ("rank 0 (node 0) raised ValueError: epoch 3 failed" if noticed == "wrapped" else "ConnectionReset") in text
    whole(ringed)


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_generator_that_fails_half_way(ringed: sky.ComputePool, how: str) -> None:
    """What was yielded arrives, then every stream ends with the same error, also that of the rank that waited."""
    streams = yields_until(1, how) @ ringed
    items: list[int] = []
    errors: list[BaseException] = []
    for stream in streams:
        with pytest.raises((LookupError, WorkerLostError)) as caught:
            items.extend(stream)
        errors.append(caught.value)
    assert items == [0, 1, 2] * 2
    assert errors[0] is errors[1]
    assert "rank 0 (node 0) was here:" in told(errors[0])
    whole(ringed)


def test_calls_that_wait_run_once_after_a_failure(ringed: sky.ComputePool) -> None:
    """None is lost, none runs twice, whether it waited here or had been sent ahead; a running one is let finish."""
    token = uuid.uuid4().hex
    running: Future[int] = notes(token, 100, 2.0) > ringed
    time.sleep(0.5)
    failures: list[BaseException] = []

    def broadcast() -> None:
        with pytest.raises(LookupError) as caught:
            fails_on(1, "raise") @ ringed
        failures.append(caught.value)

    caller = threading.Thread(target=broadcast)
    caller.start()
    waiting = [notes(token, number, 0.0) > ringed for number in range(8)]
    caller.join(60)
    assert [future.result(60) for future in waiting] == list(range(8))
    assert running.result(60) == 100
    assert len(failures) == 1
    traces = {name for names in noted(token) @ ringed for name in names}  # processes share a directory
    runs = sorted(int(name.split("-")[0]) for name in traces)
    assert runs == [*range(8), 100]
    whole(ringed)


def test_a_time_limit_stops_all_ranks(ringed: sky.ComputePool) -> None:
    """Also those that do not heed it; the error says where they were."""
    before = whole(ringed)
    began = time.monotonic()
    with pytest.raises(TaskTimeoutError, match="limit of 1 s") as caught:
        ignores_its_end(120.0).with_timeout(1) @ ringed
    text = told(caught.value)
    assert "rank 0 (node 0), rank 1 (node 1) was here:" in text
    assert "time.sleep(seconds)" in text
    assert all_differ(whole(ringed), before)
    assert time.monotonic() - began < STOPPED_S


def test_a_broadcast_that_may_run_again_does_so_on_all_ranks(ringed: sky.ComputePool) -> None:
    """`retries=1`: the ranks that had not failed run it again as well, in fresh processes."""
    before = whole(ringed)
    answers = falls_once(uuid.uuid4().hex) @ ringed
    assert [gathered for _, gathered in answers] == [[0, 1], [0, 1]]
    assert all_differ([process for process, _ in answers], before)


def test_a_collective_function_makes_a_group_of_a_plain_pool(new_pool: Make) -> None:
    """As the decorators of frameworks do: what it leaves in the processes does not survive the loss of one."""
    with new_pool(nodes=2) as plain:
        before = fails_together(5, "return") @ plain
        with pytest.raises(WorkerLostError, match="exit status 7") as caught:
            fails_together(1, "exit") @ plain
        assert "rank 0 (node 0) was here:" in told(caught.value)
        after = fails_together(5, "return") @ plain
        assert all_differ(after, before)
        with pytest.raises(WorkerLostError, match="exit status 5"):
            falls_alone() >> plain
        assert all_differ(fails_together(5, "return") @ plain, after)


def test_a_group_that_cannot_be_made_again_says_why(new_pool: Make) -> None:
    """The failure itself is told as ever; the next call says what keeps the pool from going on."""
    marker = uuid.uuid4().hex
    with new_pool(nodes=2, plugins=[ring_once(marker)]) as pool:
        with pytest.raises(LookupError):
            fails_on(1, "raise") @ pool
        with pytest.raises(PoolError, match=r"fails_on\(\) had failed on some of them") as caught:
            pid() >> pool
        assert "no second ring for this rank" in str(caught.value)
        assert "open another one" in str(caught.value)
    for path in Path(tempfile.gettempdir()).glob(f"{marker}-*"):  # of processes; containers are gone with theirs
        path.unlink()


def test_a_lost_container_is_named_and_replaced(containers: Containers, printed: Printed) -> None:
    """Its ranks come back in another container, and with them the group, of fresh processes everywhere."""
    with sky.ComputePool(sky.Docker(), nodes=2, image=IMAGE, plugins=[ring()]) as pool:
        whole(pool)
        victim = next(c for c in containers(pool.id) if c.labels["skyward.node"] == "1")
        killed: list[float] = []

        def kill() -> None:
            printed.until(out="[0] waits")
            printed.until(out="[1] waits")
            killed.append(time.monotonic())
            victim.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(WorkerLostError, match="Node 1 was killed") as caught:
            fails_on(5, "never") @ pool
        assert time.monotonic() - killed[0] < STOPPED_S
        killer.join(60)
        assert "rank 0 (node 0) was here:" in told(caught.value)
        whole(pool)
        assert victim.id not in {container.id for container in containers(pool.id)}


def test_an_interrupted_broadcast_leaves_a_usable_pool(script: Callable[..., subprocess.Popen[str]]) -> None:
    """Ctrl-C while the ranks wait for each other: it comes through, and the next call meets fresh processes."""
    program = script(
        """
        import skyward as sky
        from tests.e2e.failing_functions import ignores_its_end, members, ring

        with sky.ComputePool(sky.Local(), nodes=2, plugins=[ring()]) as pool:
            before = [pid for pid, _, _ in members() @ pool]
            try:
                ignores_its_end(120.0) @ pool
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            after = [pid for pid, _, _ in members() @ pool]
            print("fresh", not set(before) & set(after), flush=True)
        """,
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    assert program.stdout and program.stderr
    try:
        seen = sorted(program.stdout.readline() for _ in range(2))
        assert seen == ["[0] does not heed\n", "[1] does not heed\n"], program.stderr.read()
        began = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        assert program.stdout.readline() == "fresh True\n"
        assert time.monotonic() - began < STOPPED_S
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()


def test_a_call_on_all_ranks_while_streams_of_another_are_read(
    ringed: sky.ComputePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused in the thread that reads them, and runs when they are closed."""
    monkeypatch.setattr(worker_group, "OPEN_S", 0.2)
    streams = counted(40) @ ringed
    assert [pid() >> ringed for _ in zip(*streams, strict=True)][39] > 0
    assert [len(pid() @ ringed) for _ in counted(40) >> ringed] == [2] * 40
    streams = counted(40) @ ringed
    with pytest.raises(PoolError, match=r"waits for the streams of counted\(\).* Read them to their end or close them"):
        pid() @ ringed
    for items in streams:
        items.close()  # type: ignore[attr-defined] # a remote stream can be closed
    whole(ringed)


def test_a_call_of_one_rank_that_waits_for_the_others_is_told(
    ringed: sky.ComputePool, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """With the place and the remedy, once; calls that work, or wait for something else, are not."""
    monkeypatch.setattr(lone_calls, "STUCK_S", 0.5)
    for module in (lone_calls, worker_group):
        monkeypatch.setattr(module, "PROBE_S", 0.1)
    waits_in("elsewhere", 0.8) >> ringed
    assert "called on that rank only" not in printed.read().err
    for _ in range(2):
        waits_in("torch.distributed.group", 1.0) >> ringed
    said = printed.read().err
    assert re.search(
        r"waits_in\(\) has waited on node \d for 0.5 s, and was called on that rank only\. If it waits for the "
        r"others, call it with @: `waits_in\(\.\.\.\) @ pool`\. It is here:\n  File .*, in waits_in\n",
        said,
    )
    assert said.count("called on that rank only") == 1
