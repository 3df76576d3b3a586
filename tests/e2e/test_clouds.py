"""What AWS and Google Cloud have in common: the contract of providers, and that nothing outlives its client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance
from tests.e2e.cloud import PRICES, REGION, Cloud
from tests.e2e.gcp import Google
from tests.e2e.stand import IMAGE, wait_until
from tests.e2e.test_aws import cloud
from tests.e2e.test_gcp import PROVIDER, SMALL, google

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
    """A cloud with an empty account, which must be empty again after a test.

    Attributes:
        cloud: the stand-in.
        provider: rents from it.
        machine: its smallest type.
    """

    cloud: Cloud | Google
    provider: Any
    machine: str

    def client(self, **settings: Any) -> subprocess.Popen[str]:
        """A process that opens a pool, prints a line, and waits."""
        program = CLIENT.format(provider=f"sky.{self.provider!r}", machine=self.machine, settings=settings)
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)


@pytest.fixture(params=["aws", "gcp"])
def rented(request: pytest.FixtureRequest) -> Rented:
    if request.param == "aws":
        return Rented(request.getfixturevalue("cloud"), sky.AWS(REGION, use_private_ip=True), "m6i.large")
    return Rented(request.getfixturevalue("google"), PROVIDER, SMALL)


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
    rented.cloud.machines.boots = False
    client = rented.client()
    wait_until(lambda: bool(rented.cloud.running()), 60)
    time.sleep(1.0)  # it waits for an sshd that never answers
    client.send_signal(signal.SIGINT)
    began = time.monotonic()
    client.communicate()
    assert time.monotonic() - began < 60  # of the 300 s in which machines become ready
    assert rented.cloud.left() == []


@pytest.mark.parametrize(
    ("rented", "settings"),
    [
        pytest.param("aws", {"ttl": 3}, id="aws, lease"),
        pytest.param(
            "aws", {"budget": 20 * PRICES["m6i.large"] / 3600}, id="aws, budget"
        ),  # long before the lease ends
        pytest.param("gcp", {"ttl": 3}, id="gcp, lease"),
    ],
    indirect=["rented"],
)
def test_machines_end_by_themselves_when_nobody_is_left_to_end_them(rented: Rented, settings: dict[str, Any]) -> None:
    """The client's whole computer goes off: the guard shuts the machine down, and `destroy` removes the rest."""
    client = rented.client(**settings)
    if "ttl" in settings:
        assert client.stdout is not None and client.stdout.readline() == "open\n"
    wait_until(lambda: bool(rented.cloud.running()), 120)
    (machine,) = rented.cloud.running()
    for pid in (*rented.cloud.reapers(), client.pid):
        os.kill(pid, signal.SIGKILL)
    client.communicate()
    assert rented.cloud.running()
    wait_until(lambda: not rented.cloud.running(), 180)
    (rest,) = rented.provider.find()
    assert rest["pool"] == machine.pool
    assert rest["state"] in ("security group", "stopped")
    rented.provider.destroy(machine.pool)
    assert rented.cloud.left() == []
