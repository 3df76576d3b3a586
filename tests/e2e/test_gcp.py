"""Pools on Google Cloud: its API is `tests.gcp_api`, the machines are the stand's hosts, everything else is real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward as sky
from scripts.stand.place import Stand
from tests.e2e.gcp import Google
from tests.e2e.stand import IMAGE, wait_until
from tests.e2e.stand_functions import ask_metadata, where
from tests.gcp_api import REGION, ZONES

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
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # `ps` also asks places of recorded pools
    try:
        yield made
        wait_until(lambda: not made.left(), REAPER_S)
        wait_until(lambda: not made.reapers(), REAPER_S)
    finally:
        made.close()


def test_a_pool_on_google_cloud(google: Google, capsys: pytest.CaptureFixture[str]) -> None:
    """Its machines are known by their keys, closed to others, found from another process, replaced when taken away."""
    google.api.refuse = lambda zone, _: [("ZONE_RESOURCE_POOL_EXHAUSTED", "none")] if zone == ZONES[0] else None
    budget = {"max_hourly_cost": 0.1, "budget": 1.0}
    with sky.ComputePool(PROVIDER, image=IMAGE, machine=SMALL, display="auto", **budget) as pool:  # type: ignore[arg-type]
        assert where() >> pool == "stand1"
        assert ask_metadata() >> pool == "ConnectionRefusedError"
        (name,) = google.machines.running
        command = [sys.executable, "-m", "skyward", "ps", "--at", f"gcp://{REGION}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (row,) = (line.split() for line in shown.splitlines() if pool.id in line and name in line)
        assert (row[:4], row[5]) == ([pool.id, "0", REGION, "running"], f"{ZONES[1]}/{name}")
        google.machines.running[name].interrupt("now")
        wait_until(lambda: where() >> pool == "stand2", 90)
        assert len(google.machines.running) == 2
    assert google.left() == []
    said = capsys.readouterr().err
    assert "no room for e2-standard-2 (spot) in us-central1-a: ZONE_RESOURCE_POOL_EXHAUSTED" in said
    assert "launching 1 x e2-standard-2 (spot) in us-central1-b for 0.024 USD per hour" in said
    assert "will be reclaimed by Google Cloud at" in said
