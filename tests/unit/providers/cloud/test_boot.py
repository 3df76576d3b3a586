"""The first start of a rented machine: the guard that shuts it down, the user data, and the keys."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.providers.cloud.base import FirstStart
from skyward.providers.cloud.boot import GUARD, KEY_SCRIPT, PoolKeys, public_key, user_data
from tests.waiting import wait_until


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
        (place / "alive").touch()
        os.utime(place / "alive", (time.time() - silent_s + lease_s,) * 2)
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
    assert _uptime() - 60 <= due - 3 <= _uptime()
    time.sleep(2)
    machine.start()
    assert machine.is_off(30)
    assert due <= _uptime()
    assert [path.name for path in machine.off.parent.glob("mark.until.*")] == [noted.name]


@pytest.fixture
def keys(tmp_path: Path) -> PoolKeys:
    return PoolKeys.generate(tmp_path)


def test_a_launch_has_a_first_host_key_for_its_first_connections(keys: PoolKeys) -> None:
    """In a file of its own, and each launch another; of the private half nothing is kept on disk."""
    first, later = keys.first_host_key(0), keys.first_host_key(1)
    start = FirstStart(read_notice="ask")
    config = json.loads(user_data(keys.login_public, first, 60, start).partition("\n")[2])
    first.trust(["10.0.0.2", "10.0.0.1"])

    public = " ".join(config["ssh_keys"]["ed25519_public"].split()[:2])
    assert first.known_hosts.read_text().splitlines() == [f"10.0.0.1 {public}", f"10.0.0.2 {public}"]
    assert first.private != later.private
    assert first.private not in repr(first)
    assert keys.known_hosts.read_text() == ""
    kept = [path.read_text() for path in keys.folder.iterdir()]
    assert not any(key.private in text for text in kept for key in (first, later))


def test_a_restarted_machine_keeps_its_host_key(tmp_path: Path) -> None:
    """The client trusts no other. A restart before that generates another, which the client can still learn."""
    key, place, tools = tmp_path / "ssh_host_key", tmp_path / "place", tmp_path / "bin"
    tools.mkdir()
    (tools / "systemctl").write_text('#!/bin/sh\n[ "$2" = ssh ]\n')  # a Debian, of old
    (tools / "systemctl").chmod(0o755)
    key.write_text("first\n")
    words = ["sh", "-c", KEY_SCRIPT, "sh", str(key), str(place), pwd.getpwuid(os.getuid()).pw_name]
    env = {"PATH": f"{tools}:/usr/bin:/bin"}
    public = set[str]()
    for _ in range(2):
        (place / "public").unlink(missing_ok=True)
        with subprocess.Popen(words, env=env) as process:
            wait_until((place / "public").exists, 120)
            public.add((place / "public").read_text())
            if len(public) == 1:
                process.kill()  # and started again
            else:
                (place / "client" / "trusted").touch()
    assert process.returncode == 0
    assert len(public) == 2
    mine = key.read_text()
    subprocess.run(words, env=env, check=True, timeout=60)
    assert key.read_text() == mine != "first\n"


@pytest.mark.parametrize(
    "said",
    ["", "guard engine\n", "ssh-rsa AAAA\n", f"ssh-ed25519 {'A' * 67}\n", f"ssh-ed25519 {'A' * 68}\n* ssh-ed25519 A"],
)
def test_output_that_is_no_host_key_is_not_trusted(said: str) -> None:
    """It would become a line of known_hosts. A key may follow what a shell prints; its comment is left out."""
    assert public_key(said) is None
    assert public_key(f"hello\nssh-ed25519 {'A' * 68} skyward\n") == f"ssh-ed25519 {'A' * 68}"
