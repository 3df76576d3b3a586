"""Pools on a Slurm cluster: the queue, limits, lost machines, and what is left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import skyward as sky
from scripts.slurm import commands
from scripts.slurm.place import Cluster
from skyward.cli.main import main
from skyward.errors import ProviderError, WorkerLostError
from tests.e2e.slurm import LONG_S
from tests.e2e.slurm_functions import echo, variables, where, work
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("left_nothing"), pytest.mark.timeout(300)]

Make = Callable[..., sky.Slurm]


def test_a_pool(
    slurm: Make, cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user's, with GPUs; large data pass; no secret is where others can read; `skyward ps` and `down`."""
    image = sky.Image(pip=["six"], env={"COLOUR": "blue"})
    facts = cluster.facts
    where_ = ["--slurm", facts["login"], "--key", facts["key"], "--known-hosts", facts["known_hosts"]]
    with sky.ComputePool(slurm(), nodes=2, image=image, accelerator="A100", display="quiet") as pool:
        assert {uid for _, uid in where() @ pool} == {20001}
        seen = variables() >> pool
        assert seen["COLOUR"] == "blue" and len(seen["CUDA_VISIBLE_DEVICES"].split(",")) == 1
        data = bytes(64 << 20)
        assert echo(data) >> pool == data
        folder = cluster.root / "home/alice/.cache/skyward/pools" / pool.id
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not list(folder.glob("*/identity.json")), "a job removes its certificate's key when it has read it"
        shown = cluster.login.run("scontrol", "show", "job", user="bob")
        assert f"skyward.pool={pool.id}" in shown and "PRIVATE" not in shown
        main(["ps", *where_, "--json"])
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {each["node"] for each in listed if each.get("pool") == pool.id} == {0, 1}
        assert main(["down", pool.id, *where_]) == 0
        wait_until(lambda: pool.current_nodes() == 0, LONG_S)


def test_a_queue(slurm: Make, cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """Jobs wait behind another user's, which is said with the reason; then they start."""
    full = ["sbatch", "--parsable", "--nodes=3", "--exclusive", "--time=5", "--output=/dev/null", "--wrap=sleep 300"]
    blocking = cluster.login.run("sh", "-c", f"cd /tmp && {subprocess.list2cmdline(full)}", user="bob").strip()
    printed = []

    def waits() -> bool:
        printed.append(capfd.readouterr().err)
        return "waiting in the queue: job" in "".join(printed) and "(Resources)" in "".join(printed)

    pool = sky.ComputePool(slurm(), nodes=1)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(pool.__enter__)
        try:
            wait_until(waits, LONG_S)
        finally:
            cluster.login.run("scancel", blocking)
        opening.result(LONG_S)
    try:
        assert where() >> pool
    finally:
        pool.__exit__(None, None, None)


def test_jobs_that_never_run(slurm: Make) -> None:
    """They are cancelled, and the error names Slurm's reason and what to do."""
    with (
        pytest.raises(ProviderError, match=r"can never run \(Slurm: Partition\w+\), and was cancelled"),
        sky.ComputePool(slurm(partition="pairs"), display="quiet"),
    ):
        pass
    with (
        pytest.raises(ProviderError, match="No node of the partition has what the job asks for"),
        sky.ComputePool(slurm(), cpu=64, display="quiet"),
    ):
        pass
    with pytest.raises(ProviderError, match="partitions: main, pairs"), sky.ComputePool(slurm(partition="no")):
        pass


def test_a_machine_that_is_lost(slurm: Make, cluster: Cluster) -> None:
    """The call that it ran is lost, and a new job avoids it, also while Slurm does not know yet."""
    with sky.ComputePool(slurm(), display="quiet") as pool:
        before, _ = where() >> pool
        machine = next(each for each in cluster.nodes if each.name == before)
        try:
            running = work(200.0) > pool
            commands.power_off(machine)
            with pytest.raises(WorkerLostError):
                running.result(LONG_S)
            after, _ = where() >> pool
            assert after != before
        finally:
            commands.power_on(machine)
    commands.wait_idle(cluster)


def test_a_time_limit(slurm: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """It is told before, the node finishes what it runs, and another job takes its place."""
    with sky.ComputePool(slurm(time="1", renew=True)) as pool:
        printed = []

        def told() -> bool:
            printed.append(capfd.readouterr().err)
            return "left of its time limit" in "".join(printed)

        assert where() >> pool
        wait_until(told, LONG_S)
        assert where() >> pool
