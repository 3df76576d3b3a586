"""Machines of EC2 end by themselves when nobody is left to end them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.providers.aws.boot import GUARD


class Machine:
    """The guard at work in a directory of its own, where shutting down writes a file."""

    def __init__(self, folder: Path, boot_s: int, idle_s: int) -> None:
        self.off, self._folder = folder / "off", folder
        (folder / "bin").mkdir()
        shutdown = folder / "bin" / "shutdown"
        shutdown.write_text(f"#!/bin/sh\necho $@ >{self.off}\nkill $PPID\n")
        shutdown.chmod(0o755)
        words = ["sh", "-c", GUARD, "guard", str(folder), str(folder / "mark"), str(boot_s), str(idle_s)]
        self.process = subprocess.Popen(words, env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin"})

    def pool(self, lease_s: int, silent_s: float = 0.0) -> Path:
        """The directory that a keeper makes, whose client was heard so long ago."""
        place = self._folder / "p1.0.0"
        place.mkdir(exist_ok=True)
        (place / f"lease.{lease_s}").touch()
        (place / "alive").touch()
        os.utime(place / "alive", (time.time() - silent_s,) * 2)
        return place

    def is_off(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not self.off.exists():
            time.sleep(0.05)
        return self.off.exists()


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(tmp_path, *request.param)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("machine", [(1, 1)], indirect=True)
def test_a_machine_that_no_client_ever_reaches_ends(machine: Machine) -> None:
    """After the time that a start may take."""
    assert machine.is_off(30)
    assert machine.off.read_text() == "-h now\n"
    assert (machine.off.parent / "mark").exists()


@pytest.mark.parametrize("machine", [(60, 1)], indirect=True)
def test_a_machine_lives_with_its_pool_and_ends_after_it(machine: Machine) -> None:
    """As long as its keeper's directory is fresh; an orderly end and a dead keeper come to the same."""
    place = machine.pool(lease_s=60)
    assert not machine.is_off(3.5)
    for file in place.iterdir():
        file.unlink()
    assert machine.is_off(30)


@pytest.mark.parametrize("machine", [(2, 1)], indirect=True)
def test_a_lease_that_ran_out_keeps_no_machine(machine: Machine) -> None:
    """The keeper would have cleared it half a minute ago; it must be dead."""
    machine.pool(lease_s=5, silent_s=40)
    assert machine.is_off(30)
