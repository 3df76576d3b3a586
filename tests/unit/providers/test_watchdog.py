"""The watchdog's script in this machine's own shell, reached by a stand-in for `ssh` that runs commands here."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh.watchdog import Watchdog

# what stands after the host's name is the command; a shell file that prints something comes first
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ "$2" = refused ] && { echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255; }
echo "Welcome, today is a fine day"
SSH_CONNECTION="192.0.2.9 51000 192.0.2.7 22" exec sh -c "$3"
"""
DOCKER = "#!/bin/sh\nexit 0\n"

Start = Callable[..., Watchdog]


@pytest.fixture
def pool() -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where watchdogs of this user keep their directories; the names of sockets below it must be short."""
    runtime = Path(tempfile.mkdtemp(prefix="sk"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield runtime / "skyward" / "pools"
    shutil.rmtree(runtime)


@pytest.fixture
def start(tmp_path: Path, pool: str, pools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start watchdogs of a pool; what they leave is looked for afterwards."""
    for name, text in (("ssh", SSH), ("docker", DOCKER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    started: list[Watchdog] = []

    def make(host: str = "box", slot: int = 0, attempt: int = 0, goes: bool = True) -> Watchdog:
        folder = tmp_path / f"k{len(started)}"
        folder.mkdir()
        started.append(Watchdog(SshHost(host=host), folder, pool, 60, slot, attempt))
        if goes:
            started[-1].facts()
            started[-1].go()
        return started[-1]

    yield make
    for watchdog in started:
        watchdog.end()
        assert watchdog.connection.ended.wait(60)
    assert not any(pools.glob("*"))
    assert not any(Path("/tmp").glob(f".skyward*{pool}*"))


def test_facts_are_told_before_anything_is_changed(start: Start, pools: Path, tmp_path: Path) -> None:
    """What a shell file prints is no fact; the address is the one at which the host was reached."""
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "docker.sock"))
        facts = start(goes=False).facts()
    assert facts.address == "192.0.2.7"
    assert facts.machine == f"{os.uname().sysname} {os.uname().machine}"
    assert abs(facts.ahead_s) <= 2
    assert (facts.socket, facts.engine) == (str(tmp_path / "docker.sock"), "there")
    assert facts.docker == str(tmp_path / "docker")
    assert not pools.parent.exists()


def test_a_node_gets_a_private_directory_with_the_key(start: Start, pool: str, pools: Path) -> None:
    """Any bytes can be a key; nobody else can read it; a node that is replaced leaves its directory alone."""
    watchdog = start()
    key = bytes(range(256))
    first, again = watchdog.add(1, key, 0), watchdog.add(1, b"other", None)
    assert {Path(first).parent, Path(again).parent} == {pools / f"{pool}.0.0"}
    assert first != again
    assert (Path(first) / "key").read_bytes() == key
    assert (Path(first) / "key").stat().st_mode & 0o777 == 0o600
    assert [Path(first).parents[n].stat().st_mode & 0o777 for n in range(3)] == [0o700] * 3
    watchdog.drop(first)
    assert not Path(first).exists()
    assert Path(again).exists()


def test_ports_are_free_and_chosen_at_random(start: Start) -> None:
    """They are outside the range that kernels hand out by themselves."""
    watchdog = start()
    ports = {watchdog.port() for _ in range(5)}
    assert len(ports) > 1
    assert all(10_000 <= port < 30_000 for port in ports)


def test_the_same_pool_twice_on_a_machine_is_refused(start: Start) -> None:
    """Two names of one machine: the second finds the first's directory."""
    first = start()
    with pytest.raises(ProviderError, match="File exists"):
        start()
    with pytest.raises(ProviderError, match=r"File exists.* under another name"):
        start(slot=1, attempt=3)
    assert Path(first.directory).is_dir()


def test_the_next_attempt_on_a_machine_ends_what_the_last_one_left(start: Start, tmp_path: Path, pool: str) -> None:
    """Its containers first, then its directory; its watchdog, which may not know of the client's end, ends as well."""
    engine = tmp_path / "engine"
    (tmp_path / "docker").write_text(
        f'#!/bin/sh\ncase "$*" in *" ps "*) cat {engine} 2>/dev/null || : ;; *" rm "*) echo "$*" >>{tmp_path}/removed; '
        f"rm {engine} ;; esac\n"
    )
    lost = start()
    engine.write_text("c0ffee\n")
    again = start(attempt=1)
    assert not Path(lost.directory).exists()
    assert Path(again.directory).is_dir()
    assert "rm -f -v c0ffee" in (tmp_path / "removed").read_text()
    assert lost.connection.ended.wait(30)
    assert again.port()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_node_s_directory_belongs_to_the_user_of_its_container(start: Start) -> None:
    """Nobody else can open it; where nobody knows the user, only the pool's directory keeps others out."""
    watchdog = start(goes=False)
    assert watchdog.facts().user == (os.geteuid(), os.getegid())
    watchdog.go()
    given, any_ = Path(watchdog.add(0, b"k", 10001)), Path(watchdog.add(1, b"k", None))
    for path, mode in ((given, 0o700), (given / "key", 0o600)):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (10001, mode)
    assert (any_.stat().st_mode & 0o777, (any_ / "key").stat().st_mode & 0o777) == (0o777, 0o644)
    assert any_.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_for_containers_is_kept(start: Start) -> None:
    """Byte for byte, also with what printf(1) would read as its own; the same content is one file."""
    watchdog = start()
    content = b"100 % \\n 'quoted'\nskyward:x:1000:1000::/home/skyward:/bin/sh\n" * 40
    kept = watchdog.keep(content)
    assert kept == watchdog.keep(content)
    assert kept.read_bytes() == content
    assert kept.stat().st_mode & 0o777 == 0o644


def test_a_notice_of_the_cloud_is_passed_on(start: Start, tmp_path: Path) -> None:
    """As one line, however it was written; and that there can be none."""
    watchdog = start()
    assert watchdog.notice(str(tmp_path)) == ""
    (tmp_path / "notice").write_text('{"action":\n "terminate"}\n')
    assert watchdog.notice(str(tmp_path)) == '{"action": "terminate"}'
    (tmp_path / "blind").touch()
    assert watchdog.notice(str(tmp_path)) == "blind"
