"""What AWS and Google Cloud have in common: the contract of providers, and that nothing outlives its client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance
from tests.e2e import test_aws, test_gcp
from tests.e2e.cloud import PRICES, REGION, Cloud, Instance, left
from tests.e2e.gcp import Google
from tests.e2e.stand import IMAGE, wait_until
from tests.e2e.test_aws import cloud
from tests.e2e.test_gcp import google

__all__ = ["cloud", "google"]

CLIENT = """
import skyward as sky
from tests.e2e.stand import IMAGE

settings = dict(image=IMAGE, machine={machine!r}, allocation="on-demand", display="quiet", **{settings!r})
with sky.ComputePool({provider}, **settings):
    print("open", flush=True)
    input()
"""


@dataclass
class Rented:
    """A cloud with an empty account, which must be empty again after a test."""

    provider: Any
    machine: str
    stand_in: Any
    running: Callable[[], list[Instance]]
    left: Callable[[], list[str]]
    reapers: Callable[[], list[int]]

    def client(self, **settings: Any) -> subprocess.Popen[str]:
        """A process that opens a pool, prints a line, and waits."""
        program = CLIENT.format(provider=f"sky.{self.provider!r}", machine=self.machine, settings=settings)
        command = [sys.executable, "-c", program]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )


@pytest.fixture(params=["aws", "gcp"])
def rented(request: pytest.FixtureRequest) -> Rented:
    if request.param == "aws":
        aws: Cloud = request.getfixturevalue("cloud")
        provider = sky.AWS(REGION, use_private_ip=True)
        return Rented(provider, "m6i.large", aws, aws.running, lambda: left(aws), lambda: test_aws.reapers(aws))
    found: Google = request.getfixturevalue("google")
    machines = found.machines
    return Rented(
        *(test_gcp.PROVIDER, test_gcp.SMALL, found),
        *(lambda: list(machines.values()), found.left, lambda: test_gcp.reapers(found)),
    )


class TestConformance(ProviderConformance):
    """On the stand's hosts, with the stand-ins of both APIs. It kills clients before and after each call."""

    settle_s = 120.0
    calls = ("acquire", "prepare", "replace", "release")

    @pytest.fixture(autouse=True)
    def _account(self, rented: Rented) -> None:
        self._provider = rented.provider
        self._machine = rented.machine

    def provider(self) -> Any:
        return self._provider

    @property
    def _settings(self) -> dict[str, Any]:
        return {**super()._settings, "image": IMAGE, "machine": self._machine, "allocation": "on-demand"}


def test_ctrl_c_while_machines_start_gives_them_back(rented: Rented) -> None:
    """At once, without waiting until they would have been ready."""
    rented.stand_in.boots = False
    client = rented.client()
    wait_until(lambda: bool(rented.running()), 60)
    time.sleep(1.0)  # it waits for an sshd that never answers
    client.send_signal(signal.SIGINT)
    began = time.monotonic()
    client.communicate()
    assert time.monotonic() - began < 60  # of the 300 s in which machines become ready
    assert rented.left() == []


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"ttl": 3}, id="lease"),
        pytest.param({"budget": 20 * PRICES["m6i.large"] / 3600}, id="budget"),  # long before the lease is over
    ],
)
def test_machines_end_by_themselves_when_nobody_is_left_to_end_them(rented: Rented, settings: dict[str, Any]) -> None:
    """The client's whole computer goes off: the guard shuts the machine down, and `destroy` removes the rest."""
    client = rented.client(**settings)
    if "ttl" in settings:
        assert client.stdout is not None and client.stdout.readline() == "open\n"
    wait_until(lambda: bool(rented.running()), 120)
    (machine,) = rented.running()
    for pid in (*rented.reapers(), client.pid):
        os.kill(pid, signal.SIGKILL)
    client.communicate()
    assert rented.running()
    wait_until(lambda: not rented.running(), 180)
    (rest,) = rented.provider.find()
    assert rest["pool"] == machine.pool
    assert rest["state"] in ("security group", "stopped")
    rented.provider.destroy(machine.pool)
    assert rented.left() == []
