"""Pools on a Slurm cluster: the queue, limits, lost machines, and what is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from scripts.slurm import commands
from scripts.slurm.place import Cluster
from scripts.stand.machine import power_off
from skyward.cli.main import main
from skyward.errors import ProviderError, WorkerLostError
from tests.e2e.slurm import LONG_S
from tests.e2e.slurm_functions import echo, fill, variables, where, work
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("left_nothing")

Make = Callable[..., sky.Slurm]


def test_a_pool(
    slurm: Make, cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user's, with GPUs; large data pass; no secret is where others can read; `skyward ps` and `down`."""
    image = sky.Image(pip=["six"], env={"COLOUR": "blue"})
    facts = cluster.facts
    where_ = ["--at", f"slurm://{facts['login']}?key={facts['key']}&known_hosts={facts['known_hosts']}"]
    shape: dict[str, Any] = {"nodes": 2, "accelerator": "A100", "memory": 2}
    with sky.ComputePool(slurm(), image=image, display="quiet", **shape) as pool:
        assert {uid for _, uid in where() @ pool} == {20001}
        seen = variables() >> pool
        assert seen["COLOUR"] == "blue" and len(seen["CUDA_VISIBLE_DEVICES"].split(",")) == 1
        data = bytes(256 << 20)
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


def block(cluster: Cluster, nodes: int) -> str:
    """Have another user's job take so many machines; its number."""
    words = ["sbatch", "--parsable", f"--nodes={nodes}", "--exclusive", "--time=5", "--output=/dev/null"]
    line = subprocess.list2cmdline([*words, "--wrap=sleep 300"])
    job = cluster.login.run("sh", "-c", f"cd /tmp && {line}", user="bob").strip()
    wait_until(lambda: cluster.login.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", LONG_S)
    return job


def test_a_queue(slurm: Make, cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """Jobs wait behind another user's, which is said with the reason and the expected start; then they start."""
    blocking = block(cluster, 3)
    printed = []

    def waits() -> bool:
        printed.append(capfd.readouterr().err)
        said = "".join(printed)
        return all(text in said for text in ("waiting in the queue: job", "(Resources)", "estimated to start in"))

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


def test_nodes_that_come_later(slurm: Make, cluster: Cluster) -> None:
    """The pool opens with the one machine that is free, and the others join when another user's job has ended."""
    blocking = block(cluster, 2)
    try:
        with sky.ComputePool(slurm(), nodes=(1, 3), cpu=4, display="quiet") as pool:
            assert pool.current_nodes() == 1
            assert where() >> pool
            cluster.login.run("scancel", blocking)
            wait_until(lambda: pool.current_nodes() == 3, LONG_S)
            assert len({machine for machine, _ in where() @ pool}) == 3
    finally:
        cluster.login.run("scancel", blocking)


def test_jobs_that_never_run(slurm: Make) -> None:
    """They are cancelled, and the error names Slurm's reason and what to do."""
    for provider, settings, said in (
        (slurm(partition="pairs"), {}, r"can never run \(Slurm: Partition\w+\), and was cancelled"),
        (slurm(), {"cpu": 64}, r"can never run \(Slurm: PartitionConfig\), and was cancelled"),
        (slurm(), {"accelerator": "H100"}, "refuses the jobs"),
        (slurm(partition="no"), {}, r"(?i)refuses the jobs .*invalid partition"),
    ):
        with pytest.raises(ProviderError, match=said), sky.ComputePool(provider, display="quiet", **settings):
            pass


def test_a_machine_that_is_lost(slurm: Make, cluster: Cluster) -> None:
    """The call that it ran is lost, and a new job avoids it, also while Slurm does not know yet."""
    with sky.ComputePool(slurm(), display="quiet") as pool:
        before, _ = where() >> pool
        machine = next(each for each in cluster.hosts if each.name == before)
        try:
            running = work(200.0) > pool
            power_off(machine)
            with pytest.raises(WorkerLostError):
                running.result(LONG_S)
            after, _ = where() >> pool
            assert after != before
        finally:
            commands.power_on(machine)
    commands.wait_idle(cluster)


def lost(pool: sky.ComputePool, running: Any) -> str:
    """What a call says whose node is lost, after which the pool goes on."""
    with pytest.raises(WorkerLostError) as caught:
        running.result(LONG_S)
    return str(caught.value)


def test_jobs_that_are_ended(slurm: Make, cluster: Cluster) -> None:
    """A drained machine ends what it runs and gets nothing new; scancel and memory are named with the call."""
    with sky.ComputePool(slurm(), memory=0.3, display="quiet") as pool:
        machine, _ = where() >> pool
        cluster.login.run("scontrol", "update", f"nodename={machine}", "state=drain", "reason=test")
        try:
            assert work(1.0) >> pool == machine
            running = work(200.0) > pool
            time.sleep(1.0)
            cluster.login.run("scancel", "--user=alice")
            assert "was cancelled (scancel)" in lost(pool, running)
            assert (where() >> pool)[0] != machine
        finally:
            cluster.login.run("scontrol", "update", f"nodename={machine}", "state=resume")
        assert "more memory than it may" in lost(pool, fill(0.6) > pool)
        assert where() >> pool


AT_LOGIN = """
import os, socket
import skyward as sky
from tests.e2e.slurm_functions import echo, where
with sky.ComputePool(sky.Slurm(time="10"), nodes=2, display="quiet") as pool:
    assert {uid for _, uid in where() @ pool} == {os.getuid()}
    data = bytes(8 << 20)
    assert echo(data) >> pool == data
    print("at", socket.gethostname(), os.getuid())
"""


def test_on_the_login_node(cluster: Cluster) -> None:
    """An ordinary user's program there needs no SSH."""
    program = cluster.root / "home" / "alice" / "program.py"
    program.write_text(AT_LOGIN)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    env = f'HOME="$HOME" PATH="$PATH" SLURM_CONF="$SLURM_CONF" PYTHONPATH={Path.cwd()}:{packages}'
    line = f"cd && exec env -i {env} python3.{sys.version_info.minor} -P program.py"  # nothing of this test's variables
    done = subprocess.run(
        cluster.login.command("sh", "-c", line, user="alice"),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.stdout == "at login 20001\n", done.stdout + done.stderr


def test_what_a_cluster_can_do(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """`skyward doctor` says how images can run there, and which partitions there are."""
    facts = cluster.facts
    at = f"slurm://{facts['login']}?key={facts['key']}&known_hosts={facts['known_hosts']}"
    main(["doctor", "--at", at, "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["partitions"], found["findings"]) == (["main", "pairs"], [])
    assert found["image_modes"]["venv"] == ""
    assert main(["doctor", "--at", at]) == 0
    assert f"Slurm {found['slurm']} of {facts['login']}, partitions main, pairs" in capsys.readouterr().out


# What sites and people have there: shell files that print, and commands that are wrapped and print as well.
TALKATIVE = {
    ".bashrc": 'echo "Welcome! Jobs in the queue:"\necho 17\necho "12 of 100 GB used" >&2\nPATH="$HOME/bin:$PATH"\n',
    "bin/sbatch": '#!/bin/sh\necho "sbatch: 3 core hours are left"\nexec /usr/bin/sbatch "$@"\n',
    "bin/squeue": '#!/bin/sh\n[ ! -e "$HOME/broken" ] || { echo "Socket timed out" >&2; exit 1; }\n'
    'exec /usr/bin/squeue "$@"\n',
}


@pytest.fixture
def home(cluster: Cluster) -> Iterator[Path]:
    """The home directory of alice, with shell files and commands that print."""
    found = cluster.root / "home" / "alice"
    (found / "bin").mkdir()
    for name, text in TALKATIVE.items():
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    yield found
    shutil.rmtree(found / "bin")
    (found / ".bashrc").unlink()


def test_a_talkative_login_node(slurm: Make, cluster: Cluster, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What shell files and wrapped commands print is no answer; a failing squeue is asked again, also at the end."""
    blocking = block(cluster, 2)
    broken, printed = home / "broken", []

    def says(text: str) -> Callable[[], bool]:
        def said() -> bool:
            printed.append(capfd.readouterr().err)
            return text in "".join(printed)

        return said

    mended = threading.Timer(3.0, broken.unlink, [True])
    try:
        with sky.ComputePool(slurm(), nodes=(1, 2), cpu=4) as pool:
            assert where() >> pool
            broken.touch()
            wait_until(says("the queue could not be read and is asked again"), LONG_S)
            assert where() >> pool
            mended.start()
        assert not broken.exists(), "the pool has ended without knowing whether its jobs have"
        assert cluster.login.run("squeue", "-h", "-u", "alice", "-o", "%i") == ""
    finally:
        mended.cancel()
        broken.unlink(missing_ok=True)
        cluster.login.run("scancel", blocking)


def test_a_time_limit(slurm: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """It is announced; a call that has begun runs to its end, and another job takes the node's place."""
    with sky.ComputePool(slurm(time="1")) as pool:
        running = work(48.0) > pool  # beyond the notice, which comes 15 s before the limit
        assert running.result(LONG_S)
        assert "left of its time limit" in capfd.readouterr().err
        assert where() >> pool
