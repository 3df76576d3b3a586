"""The stand: three hosts that are machines of their own as far as a test can tell, faults, and nothing left of them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.engine import registry
from scripts.stand import commands, faults, machine
from scripts.stand.place import Host, Stand
from tests.e2e.stand import wait_until


def _reaches(one: Host, other: Host) -> bool:
    """Whether a host gets an answer from another's sshd within a second."""
    knock = f"exec 3<>/dev/tcp/{other.address}/22 && head -c 3 <&3"
    return one.run("timeout", "1", "bash", "-c", knock, check=False) == "SSH"


def _here_reaches(host: Host) -> bool:
    try:
        with socket.create_connection((host.address, 22), timeout=1) as connection:
            return connection.recv(3) == b"SSH"
    except OSError:
        return False


def _engine(host: Host) -> str:
    """What a host's engine answers, within two seconds."""
    asked = ("timeout", "2", "docker", "version", "--format", "{{.Server.Version}}")
    return host.run(*asked, check=False).strip()


def test_hosts_json_is_what_ssh_takes(stand: Stand) -> None:
    """Logins, key and host keys: the system's ssh gets in with nothing else, and meets three different machines."""
    facts = json.loads(stand.hosts_file.read_text())
    assert set(facts) == {"hosts", "key", "known_hosts"}
    names = []
    for login in facts["hosts"]:
        options = ["-F", "none", "-i", facts["key"], "-o", f"UserKnownHostsFile={facts['known_hosts']}"]
        command = ["ssh", *options, "-o", "StrictHostKeyChecking=yes", login, "hostname"]
        names.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    assert names == ["stand1", "stand2", "stand3"]
    keys = {line.split()[2] for line in Path(facts["known_hosts"]).read_text().splitlines()}
    assert len(keys) == 3


def test_each_host_has_an_engine_of_its_own(stand: Stand) -> None:
    """Same version, different engines; the hosts reach each other and the registry."""
    ids = {host.run("docker", "info", "--format", "{{.ID}}").strip() for host in stand.hosts}
    assert len(ids) == 3
    assert all(int(_engine(host).split(".")[0]) >= 20 for host in stand.hosts)
    first, second, third = stand.hosts
    assert _reaches(first, second)
    assert _reaches(second, third)
    assert _reaches(third, first)
    assert stand.registry is None or registry.answers(stand.registry)


def test_a_cable_can_be_pulled(stand: Stand) -> None:
    """Nothing gets through either way, and after that everything does."""
    host = stand.host(2)
    faults.link_down(host)
    try:
        assert not _here_reaches(host)
        assert not _reaches(stand.host(1), host)
    finally:
        faults.link_up(host)
    wait_until(lambda: _here_reaches(host), 10)


def test_packets_can_be_lost_one_way(stand: Stand) -> None:
    """What one host sends to another is lost; a third notices nothing."""
    faults.cut(stand.host(1), 2)
    try:
        assert not _reaches(stand.host(2), stand.host(1))
        assert _reaches(stand.host(3), stand.host(1))
        assert _here_reaches(stand.host(1))
    finally:
        faults.mend(stand.host(1), 2)
    assert _reaches(stand.host(2), stand.host(1))


def test_power_goes_and_comes(stand: Stand) -> None:
    """What ran is gone, what was on the disk is there."""
    host = stand.host(3)
    host.run("touch", "/var/lib/docker/kept", "/tmp/lost")
    faults.power_off(host)
    assert host.init is None
    faults.power_on(host)
    assert host.run("ls", "/var/lib/docker/kept", "/tmp/lost", check=False).split() == ["/var/lib/docker/kept"]
    host.run("rm", "/var/lib/docker/kept")
    assert _here_reaches(host)
    assert _engine(host)


def test_sshd_and_engine_can_be_killed(stand: Stand) -> None:
    """One without the other, and both come back."""
    host = stand.host(3)
    faults.kill_sshd(host)
    assert not _here_reaches(host)
    assert _engine(host)
    faults.start_sshd(host)
    wait_until(lambda: _here_reaches(host), 10)
    faults.kill_engine(host)
    assert not _engine(host)
    faults.start_engine(host)
    assert _engine(host)


def test_a_line_can_be_slow(stand: Stand) -> None:
    """Two megabytes at 8 Mbit/s take about two seconds."""
    host = stand.host(2)
    faults.slow(host, 8)
    began = time.monotonic()
    try:
        receive = ["bash", "-c", "head -c 2000000 /dev/zero >/dev/tcp/$0/9999", host.address]
        script = "import socket; s = socket.create_server(('', 9999)); c, _ = s.accept()\nwhile c.recv(65536): pass"
        server = subprocess.Popen(["nsenter", "--net", f"--target={host.init}", "python3", "-c", script])
        wait_until(lambda: "270F" in host.run("cat", "/proc/net/tcp"), 10)
        subprocess.run(receive, check=True)
        server.wait(30)
    finally:
        faults.fast(host)
    assert time.monotonic() - began > 1.5


def test_a_disk_can_be_full(stand: Stand) -> None:
    """The engine then has a small disk, and afterwards its own again."""
    host = stand.host(3)
    faults.fill_disk(host, 50)
    try:
        assert int(host.run("df", "-Pk", "/var/lib/docker").splitlines()[1].split()[1]) == 50 * 1024
        assert _engine(host)
    finally:
        faults.free_disk(host)
    assert int(host.run("df", "-Pk", "/var/lib/docker").splitlines()[1].split()[1]) > 1024**2
    assert _engine(host)


@pytest.fixture
def second(stand: Stand, tmp_path: Path) -> Iterator[Stand]:
    """Another clone's stand beside the first."""
    other = Stand(tmp_path)
    yield other
    commands.down(other)


def test_nothing_is_left_of_a_stand_of_a_killed_test_process(second: Stand) -> None:
    """It lies in the folder of the clone's own, which takes it away."""
    inner = Stand(second.root / "gw0")
    inner.clone.mkdir(parents=True)
    commands.up(inner)
    inits = [host.init for host in inner.hosts]
    commands.down(second)
    assert all(inits) and not [pid for pid in inits if Path(f"/proc/{pid}").exists()]
    assert inner.tag not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_nothing_is_left_of_a_stand(second: Stand) -> None:
    """A second clone's stand gets a network of its own, and when it is down there is no trace."""
    commands.up(second)
    assert all(_here_reaches(host) for host in second.hosts)
    inits = [host.init for host in second.hosts]
    machine.power_off(second.host(1))
    commands.down(second)
    assert not second.root.exists()
    assert not [pid for pid in inits if pid and Path(f"/proc/{pid}").exists()]
    said = [
        subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for words in (["ip", "link"], ["ip", "netns"], ["iptables-save"], ["cat", "/proc/self/mountinfo"])
    ]
    assert not [text for text in said if second.tag in text or str(second.root) in text]
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{second.cgroup}*"))
