"""Detached runs on rented machines: rented for the run, ended when its results are fetched or nobody fetches them.

The API is moto's server on loopback, the machines are the stand's hosts; programs and commands are processes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.cloud import Cloud, Instance, left
from tests.e2e.test_attached_runs import command
from tests.e2e.test_aws import cloud
from tests.e2e.test_runs import check, detached, home

__all__ = ["cloud", "home"]

pytestmark = [pytest.mark.timeout(400)]
PROVIDER = "sky.AWS('us-east-1', use_private_ip=True), machine='m6i.large'"


def test_a_run_on_rented_machines_ends_with_them(cloud: Cloud, home: Path) -> None:
    """Who has started it is killed; attach shows all of it, fetches its results and ends the machines."""
    run = detached(PROVIDER)
    first, second = sorted(cloud.running(), key=lambda each: each.host.number)
    pointer = json.loads((home / run / "run.json").read_text())
    assert pointer["place"] == f"skyward@{first.address}"
    assert pointer["rented"]["provider"] == "AWS:us-east-1"
    assert all(f"skyward-run-{run}" in accepted(each) for each in (first, second))
    told = first.host.run("sh", "-c", f"cat /home/skyward/.local/state/skyward/runs/{run}/*.json")
    assert "AWS_" not in told  # no credentials go there

    done = command("attach", run)

    assert done.returncode == 0, done.stderr
    assert "the machines of" in done.stderr
    assert "are given back" in done.stderr
    (home / run / "results.json").write_text((home / run / "saved" / "squares.json").read_text())
    check(home / run)
    assert left(cloud) == []
    assert command("logs", run).stdout == done.stdout


def accepted(machine: Instance) -> str:
    """The keys that a machine accepts."""
    return machine.host.run("cat", "/home/skyward/.ssh/authorized_keys")
