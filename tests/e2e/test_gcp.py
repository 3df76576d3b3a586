"""Pools on Google Cloud: its API is `tests.gcp_api`, the machines are the stand's hosts, everything else is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import skyward as sky
from scripts.stand.place import Stand
from skyward.errors import WorkerLostError
from skyward.nodes.run_directory import runtime_base
from tests.e2e.cloud_clients import StartClients, calls_until, clients_of, hear, reapers_of, say
from tests.e2e.gcp import Google
from tests.e2e.stand import IMAGE, stand, wait_until
from tests.e2e.stand_functions import ask_metadata, where
from tests.gcp_api import REGION, ZONES

__all__ = ["stand"]

PROVIDER = sky.GCP(REGION, use_private_ip=True)
SMALL = "e2-standard-2"
REAPER_S = 180.0


@pytest.fixture
def google(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """An empty project; it must be empty again after a test."""
    made = Google(stand, tmp_path)
    for variable in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_COMPUTE_REGION"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in made.api.env.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        yield made
        wait_until(lambda: not made.left(), REAPER_S)
        wait_until(lambda: not reapers(made), REAPER_S)
    finally:
        made.close()


@pytest.fixture
def client(google: Google) -> Iterator[StartClients]:
    """Clients in processes of their own; see `clients_of`."""
    first = "import google.auth.transport.requests, google.oauth2.service_account; from google.cloud import compute_v1"
    with clients_of(f"sky.GCP({REGION!r}, use_private_ip=True)", SMALL, first) as start:
        yield start


def reapers(google: Google) -> list[int]:
    return reapers_of("gcp", google.api.url)


def test_a_pool_on_google_cloud(google: Google, capsys: pytest.CaptureFixture[str]) -> None:
    """Its machines are known by their keys, closed to others, found from another process, replaced when taken away."""
    google.api.refuse = lambda zone, _: [("ZONE_RESOURCE_POOL_EXHAUSTED", "none")] if zone == ZONES[0] else None
    budget = {"max_hourly_cost": 0.1, "budget": 1.0}
    with sky.ComputePool(PROVIDER, image=IMAGE, machine=SMALL, display="auto", **budget) as pool:  # type: ignore[arg-type]
        assert where() >> pool == "stand1"
        assert ask_metadata() >> pool == "ConnectionRefusedError"
        (name,) = google.machines
        assert google.api.instances[name]["scheduling"]["maxRunDuration"]["seconds"] == str(
            round(1 / 0.024 * 3600) + 10
        )
        command = [sys.executable, "-m", "skyward", "ps", "--at", f"gcp://{REGION}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (row,) = (line.split() for line in shown.splitlines() if pool.id in line and name in line)
        assert (row[:4], row[5]) == ([pool.id, "0", REGION, "running"], f"{ZONES[1]}/{name}")
        google.machines[name].interrupt("now")
        wait_until(lambda: where() >> pool == "stand2", 90)
        assert len(google.machines) == 2
    assert google.left() == []
    said = capsys.readouterr().err
    assert "no room for e2-standard-2 (spot) in us-central1-a: ZONE_RESOURCE_POOL_EXHAUSTED" in said
    assert "launching 1 x e2-standard-2 (spot) in us-central1-b for 0.024 USD per hour" in said
    assert "will be taken away by Google Cloud at" in said


def test_a_machine_that_google_has_taken_is_replaced(google: Google) -> None:
    """It is not listed any more; `down` of another process ends the pool."""
    with pytest.raises(sky.errors.SkywardError), sky.ComputePool(PROVIDER, image=IMAGE, machine=SMALL) as pool:
        (name,) = google.machines
        del google.api.instances[name]
        google.power_off(name)
        wait_until(lambda: len(google.machines) == 1, 60)
        wait_until(lambda: _runs_on(pool, "stand1"), 60)
        command = [sys.executable, "-m", "skyward", "down", pool.id, "--at", f"gcp://{REGION}"]
        down = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"pool {pool.id}: 1 node ended at {REGION}" in down.stdout
        assert google.left() == []
        where() >> pool


def _runs_on(pool: sky.ComputePool, host: str) -> bool:
    try:
        return bool(where() >> pool == host)
    except WorkerLostError:
        return False


KINDS = [  # of calls that a client makes once it has begun to make things, and how many of a kind come first
    ("firewalls/insert", 1),
    ("firewalls/insert", 3),
    ("operations/wait", 1),
    ("instances/bulkInsert", 1),
    ("operations/wait", 4),  # the machines are there
    ("aggregated/instances", 2),
    ("instances/delete", 1),
    ("aggregated/operations", 1),
    ("firewalls/delete", 1),
]


def nth(name: str, number: int) -> Callable[[Sequence[str]], bool]:
    """Whether so many calls of this name have been carried out, the last one just now."""
    return lambda seen: seen[-1] == name and seen.count(name) == number


def test_a_client_killed_at_any_kind_of_call_leaves_nothing(google: Google, client: StartClients) -> None:
    """Each call is carried out, but its answer never arrives; what it has made, or makes later, is soon removed."""
    google.boots = False
    zygote = client("machines")
    for name, number in KINDS:
        seen = calls_until(google.api, zygote, nth(name, number), signal.SIGKILL)
        assert seen.count(name) == number, (name, seen)
    wait_until(lambda: not google.left(), REAPER_S)
    wait_until(lambda: not reapers(google), REAPER_S)
    assert list(runtime_base().glob("skyward-*.gcp")) == []  # the keys of all of them


def test_ctrl_c_while_google_makes_machines_leaves_nothing(google: Google, client: StartClients) -> None:
    """The client waits until they are there, and removes them before it ends."""
    google.boots = False
    zygote = client("pool")
    launch = "instances/bulkInsert"
    assert launch in calls_until(google.api, zygote, nth(launch, 1), signal.SIGINT)
    assert google.left() == []


def test_machines_end_by_themselves_when_nobody_is_left_to_end_them(google: Google, client: StartClients) -> None:
    """The client's whole computer goes off: the guard shuts the machine down, and `destroy` deletes it."""
    zygote = client("pool")
    say(zygote, b"n")
    pid = int(hear(zygote))
    say(zygote, b"g")
    assert hear(zygote) == "open"
    (reaper,) = reapers(google)
    os.kill(reaper, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not google.machines, 60)  # lease 3 s, and the guard's patience
    (rest,) = PROVIDER.find()
    assert (rest["node"], rest["state"]) == (0, "stopped")
    PROVIDER.destroy(rest["pool"])
    assert google.left() == []
