"""The guard shuts a rented machine down when no client uses it any more."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.providers.cloud.boot import GUARD


class Machine:
    """The guard in a directory of its own, with a `shutdown` that writes a file."""

    def __init__(self, folder: Path, boot_s: int, idle_s: int, *budget_s: int) -> None:
        self.off, self._folder = folder / "off", folder
        (folder / "bin").mkdir()
        shutdown = folder / "bin" / "shutdown"
        shutdown.write_text(f"#!/bin/sh\necho $@ >{self.off}\nkill $PPID\n")
        shutdown.chmod(0o755)
        words = ["sh", "-c", GUARD, "guard", str(folder), str(folder / "mark"), str(boot_s), str(idle_s)]
        self.words = [*words, *map(str, budget_s)]
        self.start()

    def start(self) -> None:
        """Start the guard, once more perhaps."""
        self.process = subprocess.Popen(self.words, env={"PATH": f"{self._folder / 'bin'}:/usr/bin:/bin"})

    def pool(self, lease_s: int, silent_s: float = 0.0) -> Path:
        """The directory that a watchdog makes, with a client that was heard this long ago."""
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
    """After the time that a boot may take."""
    assert machine.is_off(30)
    assert machine.off.read_text() == "-h now\n"
    assert (machine.off.parent / "mark").exists()


@pytest.mark.parametrize("machine", [(60, 1)], indirect=True)
def test_a_machine_lives_with_its_pool_and_ends_after_it(machine: Machine) -> None:
    """As long as the watchdog's directory is fresh, whether the pool ends in order or the watchdog dies."""
    place = machine.pool(lease_s=60)
    assert not machine.is_off(3.5)
    for file in place.iterdir():
        file.unlink()
    assert machine.is_off(30)


@pytest.mark.parametrize("machine", [(2, 1)], indirect=True)
def test_a_lease_that_ran_out_keeps_no_machine(machine: Machine) -> None:
    """The watchdog would have removed it half a minute ago, so it must be dead."""
    machine.pool(lease_s=5, silent_s=40)
    assert machine.is_off(30)


def _uptime() -> int:
    return int(float(Path("/proc/uptime").read_text().split()[0]))


@pytest.mark.parametrize("machine", [(600, 600, 3)], indirect=True)
def test_a_budget_that_is_spent_ends_a_machine_that_is_in_use(machine: Machine) -> None:
    """Counted from the first start of the guard, whether or not that has been started again."""
    machine.pool(lease_s=600)
    while not (machine.off.parent / "mark").exists():
        time.sleep(0.01)
    machine.process.kill()
    machine.process.wait()
    (noted,) = machine.off.parent.glob("mark.until.*")
    due = int(noted.name.rpartition(".")[2])
    assert _uptime() - 5 <= due - 3 <= _uptime()
    time.sleep(2)
    machine.start()
    assert machine.is_off(30)
    assert due <= _uptime()
    assert [path.name for path in machine.off.parent.glob("mark.until.*")] == [noted.name]


@pytest.mark.parametrize("machine", [(600, 600, 2)], indirect=True)
def test_a_client_that_has_spent_less_or_more_moves_the_end(machine: Machine) -> None:
    """By the name of a file in the watchdog's directory; the earliest counts, and what is no number does not."""
    place = machine.pool(lease_s=600)
    later = place / f"until.{_uptime() + 600}"
    later.touch()
    for odd in ("until.x", "until.07", "until.99999999999", "until."):
        (place / odd).touch()
    assert not machine.is_off(4)
    (place / f"until.{_uptime() + 1}").touch()
    assert machine.is_off(30)


@pytest.mark.parametrize("machine", [(600, 600)], indirect=True)
def test_without_a_budget_nothing_is_noted(machine: Machine) -> None:
    machine.pool(lease_s=600)
    assert not machine.is_off(2.5)
    assert not list(machine.off.parent.glob("mark.until.*"))
