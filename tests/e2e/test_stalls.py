"""Peers that stop reading, in the middle of large payloads: nobody else waits for them, and nothing runs twice."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import skyward as sky
from skyward.errors import TaskTimeoutError, WorkerLostError
from tests.waiting import wait_until

LARGE = np.zeros(5 << 17)  # 5 MB, far more than a socket takes


@sky.compute
def hold_the_interpreter(seconds: int) -> None:
    """C code that keeps the interpreter's lock: no thread of this process does anything else."""
    ctypes.PyDLL(None).sleep(seconds)


@sky.compute(retries=1)
def pids() -> tuple[int, int]:
    """Its node may be one that has just been killed."""
    return os.getppid(), os.getpid()


@sky.compute
def sleep(seconds: float, directory: str = "") -> str:
    """Leaves a file for each run."""
    if directory:
        (Path(directory) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(seconds)
    return "slept"


@sky.compute
def take(array: object, directory: str = "") -> int:
    if directory:
        (Path(directory) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return len(array)  # type: ignore[arg-type]


def test_a_worker_that_does_not_read_holds_up_no_clock_and_no_heartbeat() -> None:
    """Its call ends by its limit, what was sent ahead to it runs elsewhere, the other node outlives the lease."""
    worker = sky.Worker(buffer=4)
    with sky.ComputePool(sky.Local(), nodes=2, worker=worker, ttl=5, display="quiet") as pool:
        pids() @ pool
        stuck = hold_the_interpreter(60).with_timeout(2) > pool
        healthy = sleep(12) > pool
        time.sleep(0.2)
        behind = [take(LARGE) > pool for _ in range(8)]  # ahead to both; one of them will not read
        began = time.monotonic()
        with pytest.raises(TaskTimeoutError):
            stuck.result(20)
        assert time.monotonic() - began < 4
        assert [each.result(40) for each in behind] == [len(LARGE)] * 8
        assert healthy.result(20) == "slept"


def test_results_that_have_arrived_are_results_though_the_agent_is_gone(tmp_path: Path) -> None:
    """Agents are killed in the middle of thousands of calls: none that may not run twice does."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        record = Path(tmp_path)

        @sky.compute
        def note(number: int) -> int:
            with (record / str(os.getpid())).open("a") as file:
                file.write(f"{number}\n")
            return number

        futures = []
        for round_ in range(4):
            agent, _ = pids() >> pool
            batch = [note(1000 * round_ + number) > pool for number in range(1000)]
            futures += batch
            wait_until(batch[100].done)
            os.kill(agent, signal.SIGKILL)
            for future in batch:
                error = future.exception(60)
                assert error is None or isinstance(error, WorkerLostError)
    runs = [int(line) for file in tmp_path.iterdir() for line in file.read_text().split()]
    assert len(runs) == len(set(runs))
    returned = {future.result() for future in futures if future.exception() is None}
    assert returned <= set(runs)
    assert len(returned) > 3900
