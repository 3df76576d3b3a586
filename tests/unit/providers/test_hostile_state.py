"""What other users of a host, or damaged files, can do to a watchdog and a guard: nothing, whichever shell runs them.

The scripts run as they are, under every shell of this machine that a host's /bin/sh may be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skyward.providers.cloud.boot import GUARD
from skyward.ssh.watchdog import _SCRIPT

SHELLS = [words for words in (["dash"], ["bash"], ["busybox", "sh"], ["mksh"]) if shutil.which(words[0])]
NOBODY = 65534


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param
    return words


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: the paths of sockets have a limit."""
    folder = Path(tempfile.mkdtemp(prefix="sk"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@dataclass
class Host:
    """A user of a host, where watchdogs run; its home and its run-time directory are the user's alone."""

    shell: list[str]
    place: Path
    uid: int = field(default_factory=os.geteuid)
    pool: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def __post_init__(self) -> None:
        for path in (self.home, self.runtime, self.place / "bin"):
            path.mkdir()
        for path in (self.home, self.runtime):
            os.chown(path, self.uid, self.uid)
            path.chmod(0o700)
        docker = self.place / "bin" / "docker"
        docker.write_text("#!/bin/sh\nexit 0\n")
        docker.chmod(0o755)

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def runtime(self) -> Path:
        return self.place / "run"

    @property
    def env(self) -> Mapping[str, str]:
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.runtime)}

    def keep(self, *lines: str, env: Mapping[str, str] | None = None) -> list[str]:
        """What a watchdog says to these lines, beside the facts. It ends within 20 s."""
        words = [*self.shell, "-c", _SCRIPT, "sh", self.pool, "60", "0", "0"]
        done = subprocess.run(
            words,
            input="".join(f"{line}\n" for line in lines),
            env=self.env if env is None else env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            user=self.uid,
            group=self.uid,
            extra_groups=[] if os.geteuid() == 0 else None,
            cwd=self.place,
        )
        said = [line.removeprefix("skyward-watchdog ") for line in done.stdout.splitlines()]
        return [line for line in said if not line.startswith("fact ")]


@pytest.fixture
def host(shell: list[str], place: Path) -> Host:
    return Host(shell, place)


@pytest.fixture
def pwned(place: Path) -> Iterator[Path]:
    """What a command would make that a script took from a file."""
    path = place / "pwned"
    yield path
    assert not path.exists()


def plant(folder: Path, pwned: Path) -> None:
    """Directories of pools, by somebody who means ill or whose disk is broken."""
    payload = f"a[$(touch {pwned})]"
    for number, name in enumerate(["zz.0.0", "y\ny.0.0", "$(touch pwned).0.0", "x.0.0", "w.0.1", "-rf", "v v.0.0"]):
        made = folder / name
        made.mkdir(parents=True)
        (made / f"watch.{payload.replace('/', '_')}").touch()
        if number % 2:
            os.mkfifo(made / "alive")
            os.mkfifo(made / "port.12345")
        else:
            (made / "alive").symlink_to("/dev/zero")
    (folder / "u.0.0").symlink_to("/")
    (folder / "t.0.0").mkdir()
    with (folder / "t.0.0" / "alive").open("w") as file:
        file.truncate(1 << 34)  # nobody reads it
    os.utime(folder / "t.0.0" / "alive", (0, 0))
    (folder / "s.0.0").write_text(payload)


def test_what_lies_in_the_directory_is_never_run_and_stops_nothing(host: Host, pwned: Path) -> None:
    """Names with commands, numbers no shell can take, links, pipes, huge files: a pool comes up and gets its port."""
    pools = host.runtime / "skyward" / "pools"
    plant(pools, pwned)
    pools.parent.chmod(0o700)
    pools.chmod(0o700)
    said = host.keep("go", "port", "beat", "node 0 \\153\\145\\171", "end")
    assert said[0] == "facts"
    assert said[1] == f"ready {pools}/{host.pool}.0.0"
    assert said[2].startswith("port ")
    assert said[3:] == ["made", "ended"]


@pytest.mark.parametrize("how", ["link", "dangling link", "file", "open to all", "open to a group", "somebody else's"])
def test_a_directory_that_is_not_the_users_alone_is_not_used(host: Host, how: str) -> None:
    """The next one is; whatever stands in the way is left as it is."""
    if how == "somebody else's" and os.geteuid() != 0:
        pytest.skip("giving a directory away takes root")
    planted, elsewhere = host.runtime / "skyward", host.place / "elsewhere"
    if how == "file":
        planted.touch()
    elif "link" in how:
        planted.symlink_to(elsewhere)
        if how == "link":
            elsewhere.mkdir()
    else:
        planted.mkdir()
        if how == "somebody else's":
            os.chown(planted, NOBODY, NOBODY)
            planted.chmod(0o700)
        else:
            os.chown(planted, -1, NOBODY if os.geteuid() == 0 else -1)
            planted.chmod(0o770 if how == "open to a group" else 0o707)
    used = [line for line in host.keep("go", "end") if line.startswith("ready")]
    if how == "open to a group" and os.geteuid() != 0:
        return  # a group of this user alone is no other user
    assert used == [f"ready {host.home}/.cache/skyward/pools/{host.pool}.0.0"]
    assert (host.home / ".cache" / "skyward" / "pools").stat().st_mode & 0o777 == 0o700
    assert not elsewhere.exists() or not any(elsewhere.iterdir())


def test_a_host_without_a_private_directory_says_what_it_takes(host: Host) -> None:
    """Both are taken; a home that is not there, and names in which a socket's would be too long, come to the same."""
    for taken in (host.runtime, host.home / ".cache"):
        taken.mkdir(exist_ok=True)
        (taken / "skyward").touch()
    (said,) = [line for line in host.keep("go") if line.startswith("failed")]
    assert "$XDG_RUNTIME_DIR" in said
    assert "belong to the user" in said
    long = host.place / ("x" * 60)
    long.mkdir()
    for home in ("/dev/null/none", "", str(long), "relative"):
        env = {**host.env, "HOME": home, "XDG_RUNTIME_DIR": ""}
        assert any(line.startswith("failed neither") for line in host.keep("go", env=env))


# the guard of a rented machine, which is root ---------------------------------------------------------------------


@dataclass
class Guarded:
    """A machine with a guard, whose end writes a file."""

    place: Path
    process: subprocess.Popen[bytes]

    @property
    def off(self) -> bool:
        return (self.place / "off").exists()

    def wait_off(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not self.off and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.off


@pytest.fixture
def guarded(shell: list[str], place: Path) -> Iterator[Guarded]:
    """Idle for a second, it ends."""
    shutdown = place / "bin" / "shutdown"
    shutdown.parent.mkdir()
    shutdown.write_text(f"#!/bin/sh\n: >{place}/off\nkill $PPID\n")
    shutdown.chmod(0o755)
    (place / "pools").mkdir()
    words = [*shell, "-c", GUARD, "guard", str(place / "pools"), str(place / "mark"), "2", "1"]
    env = {"PATH": f"{shutdown.parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(words, env=env, cwd=place)
    yield Guarded(place, process)
    process.kill()
    process.wait()


def test_the_guard_runs_nothing_and_ends_the_machine_in_time(guarded: Guarded, pwned: Path) -> None:
    """Whatever lies in the directory of pools; nothing of it is a lease."""
    plant(guarded.place / "pools", pwned)
    assert guarded.wait_off(20)


def test_the_guard_sees_a_lease_among_all_that(guarded: Guarded, pwned: Path) -> None:
    """And ends the machine when that is gone."""
    plant(guarded.place / "pools", pwned)
    live = guarded.place / "pools" / "p.0.0"
    live.mkdir()
    (live / "alive").touch()
    os.utime(live / "alive", (time.time() + 60,) * 2)
    assert not guarded.wait_off(4)
    assert guarded.process.poll() is None
    shutil.rmtree(live)
    assert guarded.wait_off(20)
