"""Detached runs on rented machines: rented for the run, ended when its results are fetched or nobody fetches them.

The API is moto's server on loopback, the machines are the stand's hosts; programs and commands are processes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.stand import faults
from tests import journals
from tests.e2e.cloud import Cloud, Instance
from tests.e2e.run_programs import PRINTING
from tests.e2e.test_attached_runs import command
from tests.e2e.test_aws import cloud
from tests.e2e.test_runs import CALLS, check, detached, home, skyward_run
from tests.waiting import wait_until

__all__ = ["cloud", "home"]

PROVIDER = "sky.AWS('us-east-1', use_private_ip=True), machine='m6i.large'"


def test_a_run_on_rented_machines_ends_with_them(cloud: Cloud, home: Path) -> None:
    """Who has started it is killed; attach shows all of it, fetches its results and ends the machines."""
    run = detached(PROVIDER)
    first, second = cloud.running()
    pointer = journals.facts(home / run).record
    assert pointer.place == f"skyward@{first.address}"
    assert pointer.rented is not None and pointer.rented.provider == "AWS:us-east-1"
    assert all(f"skyward-run-{run}" in accepted(each) for each in (first, second))
    told = first.host.run("sh", "-c", f"cat /home/skyward/.local/state/skyward/runs/{run}/*.json*")
    assert "AWS_" not in told  # no credentials go there

    done = command("attach", run)

    assert done.returncode == 0, done.stderr
    assert "the machines of" in done.stderr
    assert "are given back" in done.stderr
    (home / run / "results.json").write_text((home / run / "saved" / "squares.json").read_text())
    check(home / run)
    assert cloud.left() == []
    assert command("logs", run).stdout == done.stdout
    again = command("attach", detached(PROVIDER))  # on other machines
    assert f"journal work.journal: {CALLS} of {CALLS} results are there" in again.stderr
    assert cloud.left() == []


def test_machines_end_though_nobody_fetches_the_results(cloud: Cloud, home: Path) -> None:
    """The first after --keep, the other after its lease; what is known here says so."""
    Path("beside.py").write_text("CALLS = 2\n")
    Path("short.py").write_text(PRINTING.replace("PROVIDER", PROVIDER))
    started = skyward_run("--detach", "--keep", "1s", "short.py")
    assert started.returncode == 0, started.stderr
    first, second = cloud.running()

    wait_until(lambda: not {first.id, second.id} & {each.id for each in cloud.running()}, 180)

    attached = command("attach", started.stdout.strip())
    assert attached.returncode == 6
    assert "did not answer" in attached.stderr
    assert command("down", started.stdout.strip()).returncode == 0
    assert cloud.left() == []  # the security group has gone as well


@pytest.mark.parametrize("what", ["driver", "machine"])
def test_a_run_is_ended_whose_driver_is_gone(
    cloud: Cloud, home: Path, request: pytest.FixtureRequest, what: str
) -> None:
    """Alone, or with its machine: `skyward down` gives the machines back."""
    run = detached(PROVIDER)
    first = cloud.running()[0].host
    if what == "machine":
        request.addfinalizer(lambda: faults.link_up(first))
        faults.link_down(first)
    else:
        first.run("docker", "kill", f"skyward-run-{run}")
        attached = command("attach", run)
        assert attached.returncode == 6
        assert f"Run {run} ended without a result" in attached.stderr

    done = command("down", run)

    assert done.returncode == 0, done.stderr
    assert re.match(rf"run {run} (had )?ended ", done.stdout)
    assert cloud.left() == []


def accepted(machine: Instance) -> str:
    """The keys that a machine accepts."""
    return machine.host.run("cat", "/home/skyward/.ssh/authorized_keys")
