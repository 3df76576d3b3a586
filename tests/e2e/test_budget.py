"""`ComputePool(budget=)` on EC2 as `test_aws` has it: the client ends the machines, and without it they do."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import pytest

import skyward as sky
from skyward.errors import BudgetSpentError
from tests.e2e.cloud import PRICES, REGION, Cloud, left
from tests.e2e.stand import wait_until
from tests.e2e.stand_functions import where, work_once
from tests.e2e.test_aws import cloud, pool_on, reapers

__all__ = ["cloud"]

# the SDK of Docker forgets sockets whose machine is ended in the middle of a request
pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]
PER_SECOND = PRICES["m6i.large"] / 3600
CLIENT = """
import skyward as sky
from tests.e2e.stand import IMAGE

with sky.ComputePool(
    sky.AWS({region!r}, use_private_ip=True), image=IMAGE, machine="m6i.large", allocation="on-demand", budget={budget}
):
    pass
"""


def test_a_pool_ends_when_its_budget_is_spent(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls fail with the reason, the machines are ended, none takes their place; it has warned before."""
    began = time.monotonic()
    with (
        pytest.raises(BudgetSpentError, match=r"has spent its budget of 0\.00\d+ USD after \d+ s"),
        pool_on(nodes=2, allocation="on-demand", budget=2 * 20 * PER_SECOND, display="auto") as pool,
    ):
        try:
            work_once(1, 300.0) >> pool
        finally:
            wait_until(lambda: not cloud.running(), 180)
            with pytest.raises(BudgetSpentError):
                where() >> pool
    assert time.monotonic() - began > 18
    assert left(cloud) == []
    told = capsys.readouterr().err
    assert "of its budget of" in told
    assert "its machines will be ended in about" in told
    assert "is being replaced" not in told
    gc.collect()  # what was forgotten is found here, and not in another test


def test_machines_end_themselves_when_the_client_is_away(cloud: Cloud) -> None:
    """Long before the lease of the pool is over, with nobody left to end them: they were told at their launch."""
    program = CLIENT.format(region=REGION, budget=20 * PER_SECOND)
    client = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    wait_until(lambda: bool(cloud.running()), 120)
    (machine,) = cloud.running()
    try:
        for reaper in reapers(cloud):
            os.kill(reaper, signal.SIGKILL)
        client.kill()
        client.wait()
        assert cloud.running()

        wait_until(lambda: cloud.backend.get_instance(machine.id).state == "terminated", 180)
    finally:
        client.kill()
        sky.AWS(REGION).destroy(machine.pool)
