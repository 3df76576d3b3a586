"""Ways into machines: what OpenSSH's configuration, agents and other users change; what is refused without asking."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import skyward as sky
from scripts.stand.place import Host, Stand
from skyward.ssh.preflight import HostReport
from tests.e2e.stand import IMAGE, directories_on, wait_until
from tests.e2e.stand_functions import where

REFUSED_S = 30.0  # a way that leads nowhere is told by then
pytestmark = pytest.mark.usefixtures("clean")


@dataclass(frozen=True)
class Client:
    """A user's own OpenSSH settings, which the stand's hosts know nothing of."""

    folder: Path
    stand: Stand

    def configure(self, text: str) -> None:
        """Write `~/.ssh/config`."""
        (self.folder / "config").write_text(text)

    def key(self, name: str, passphrase: str = "") -> Path:
        """A fresh key pair."""
        path = self.folder / name
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(path)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        return path


@pytest.fixture
def client(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """OpenSSH takes the user's home from the system, not from the environment: a wrapper names its configuration."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    client = Client(tmp_path, stand)
    client.configure("")
    return client


@pytest.fixture
def door(stand: Stand) -> Iterator[Callable[..., Path]]:
    """Start another sshd at another port of a host; a file of known hosts that has it."""
    opened: list[tuple[Host, int]] = []

    def start(host: Host, port: int, folder: Path, *options: str) -> Path:
        more = [word for option in (f"PidFile=/run/sshd-{port}.pid", *options) for word in ("-o", option)]
        log = f"/run/boot/sshd-{port}.log"
        host.run("/usr/sbin/sshd", "-f", "/run/boot/sshd_config", "-p", str(port), "-E", log, *more)
        opened.append((host, port))
        wait_until(lambda: bool(host.run("cat", f"/run/sshd-{port}.pid", check=False)), 60)  # written once it listens
        kind, key = (host.folder / "boot" / "host_key.pub").read_text().split()[:2]
        known = folder / f"known-{port}"
        known.write_text(f"{stand.known_hosts.read_text()}[{host.address}]:{port} {kind} {key}\n")
        return known

    yield start
    for host, port in opened:
        host.run("sh", "-c", f"kill $(cat /run/sshd-{port}.pid)", check=False)


@pytest.fixture
def user(stand: Stand) -> Iterator[Callable[..., str]]:
    """Make a user on a host, who is no administrator."""
    made: list[tuple[Host, str]] = []

    def make(host: Host, name: str, *groups: str) -> str:
        words = ("-G", ",".join(groups)) if groups else ()
        # "*" is no password that could be given, but unlike "!" it locks nobody out
        host.run("useradd", "-m", "-s", "/bin/sh", "-p", "*", *words, name)
        made.append((host, name))
        return name

    yield make
    for host, name in made:
        host.run("sh", "-c", f"pkill -KILL -u {name}; userdel -f -r {name}", check=False)


def only(provider: sky.SSH) -> HostReport:
    """How its one host is, said in time."""
    began = time.monotonic()
    (found,) = provider.host_reports()
    assert time.monotonic() - began < REFUSED_S
    return found


def test_a_jump_host_and_an_alias_of_the_configuration(client: Client, stand: Stand) -> None:
    """A name that means something only there, reached through another host; nodes know the inner address."""
    inner, outer = stand.host(3), stand.host(1)
    client.configure(
        f"Host *\n  IdentityFile {stand.key}\n  UserKnownHostsFile {stand.known_hosts}\n  User root\n"
        f"Host outer\n  HostName {outer.address}\n"
        f"Host inner\n  HostName {inner.address}\n  ProxyJump outer\n  LocalForward 47999 localhost:22\n"
    )
    with sky.ComputePool(sky.SSH("inner"), image=IMAGE, display="quiet") as pool:
        assert (where() >> pool) == "stand3"
        peers = inner.run("ss", "-Htn", "state", "established", "sport", "=", ":22")
        assert f"{outer.address}:" in peers
        assert f"{stand.gateway}:" not in peers


def test_twelve_machines_behind_one_jump_host(client: Client, stand: Stand) -> None:
    """No more log in at once than its sshd, as it is by default, lets wait; none is refused."""
    names = [f"m{number}" for number in range(12)]
    hosts = "".join(
        f"Host {name}\n  HostName {stand.host(2 + number % 2).address}\n" for number, name in enumerate(names)
    )
    client.configure(
        f"{hosts}Host *\n  IdentityFile {stand.key}\n  UserKnownHostsFile {stand.known_hosts}\n  User root\n"
        f"Host m*\n  ProxyJump {stand.host(1).address}\n"
    )
    assert [(found.host, found.findings) for found in sky.SSH(*names).host_reports()] == [(name, ()) for name in names]


def test_another_user_at_another_port(
    client: Client, stand: Stand, door: Callable[..., Path], user: Callable[..., str]
) -> None:
    """One of the group docker, who is no administrator; what the nodes leave is removed all the same."""
    host = stand.host(2)
    known = door(host, 2222, client.folder)
    login = f"{user(host, 'anna', 'docker')}@{host.address}:2222"
    with sky.ComputePool(
        sky.SSH(login, key=stand.key, known_hosts=known), nodes=2, image=IMAGE, display="quiet"
    ) as pool:
        assert where() @ pool == ["stand2", "stand2"]
        (directory,) = directories_on(host, pool.id)
        assert directory.startswith("/home/anna/.cache/skyward/pools/")
        assert host.run("stat", "-c", "%U %a", directory).split() == ["anna", "700"]


def test_a_password_is_never_asked_for(client: Client, stand: Stand, door: Callable[..., Path]) -> None:
    """A machine that would take one is refused in time, though there is a terminal that could be asked."""
    host, key = stand.host(1), client.key("unknown")
    options = ("PasswordAuthentication=yes", "KbdInteractiveAuthentication=yes")
    known = door(host, 2223, client.folder, *options)
    program = client.folder / "program.py"
    program.write_text(
        "import skyward as sky\n"
        f"provider = sky.SSH({host.login + ':2223'!r}, key={str(key)!r}, known_hosts={str(known)!r})\n"
        "print(*provider.host_reports()[0].findings)\n"
    )
    command = ["script", "-qec", f"{sys.executable} {program}", "/dev/null"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=True)
    assert time.monotonic() - began < REFUSED_S + 5
    assert "It accepts none of this user's keys." in done.stdout
    assert "password:" not in done.stdout
