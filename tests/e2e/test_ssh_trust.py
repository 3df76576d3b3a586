"""Host keys: `known_hosts=` names the only ones to trust, whatever OpenSSH's configuration says beside it.

Real sshds on loopback stand for the machine, and for the one that poses as it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skyward.engine.ssh import SshConnection
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost

_SSHD = "/usr/sbin/sshd"
_PATIENT_S = 60.0
pytestmark = pytest.mark.skipif(not Path(_SSHD).exists(), reason="takes OpenSSH's server (Debian: openssh-server)")


def keygen(path: Path) -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


@dataclass(frozen=True)
class Server:
    """An sshd on loopback."""

    port: int
    host_key: Path

    def line(self, name: str = "") -> str:
        """Its line in a file of known hosts."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {self.host_key.with_suffix('.pub').read_text()}"


@dataclass
class Site:
    """A user's keys and configuration."""

    folder: Path
    serve: Callable[[], Server]

    @property
    def key(self) -> str:
        return str(self.folder / "key")

    def known(self, *servers: Server, name: str = "known") -> str:
        path = self.folder / name
        path.write_text("".join(server.line() for server in servers))
        return str(path)

    def configure(self, text: str) -> None:
        (self.folder / "config").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """ssh reads a configuration of this test's; jumps go through the same wrapper, as through any ssh on the PATH."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    keygen(tmp_path / "key")
    running: list[subprocess.Popen[bytes]] = []

    def serve() -> Server:
        host_key = keygen(tmp_path / f"host-{len(running)}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = {
            "ListenAddress": "127.0.0.1",
            "HostKey": host_key,
            "AuthorizedKeysFile": tmp_path / "key.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        command = [_SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(port), *words]
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + _PATIENT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return Server(port, host_key)

    made = Site(tmp_path, serve)
    made.configure("")
    yield made
    for process in running:
        process.terminate()
        process.wait(_PATIENT_S)


def answer(host: SshHost, folder: Path) -> str:
    """What a command on the machine says; why there is no connection, if there is none."""
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        connection = SshConnection(host, folder, "echo", "there")
    except ProviderError as error:
        return str(error)
    said = connection.wait_line(_PATIENT_S)
    assert connection.ended.wait(_PATIENT_S)
    return said or connection.problem


def host(site: Site, server: Server, known: str) -> SshHost:
    return SshHost(host="127.0.0.1", user=getpass.getuser(), port=server.port, key=site.key, known_hosts=known)


def test_a_machine_in_the_file_is_reached(site: Site, tmp_path: Path) -> None:
    """Whatever the signs in the file's name."""
    server = site.serve()
    assert answer(host(site, server, site.known(server, name="known 100%h")), tmp_path / "c") == "there"


@pytest.mark.parametrize(
    "trusting",
    [
        "KnownHostsCommand /bin/cat {all}",
        "UserKnownHostsFile {all}",
        "GlobalKnownHostsFile {all}",
        "NoHostAuthenticationForLocalhost yes",
        "StrictHostKeyChecking no",
        "StrictHostKeyChecking accept-new\n  UpdateHostKeys yes\n  CheckHostIP yes",
        "VerifyHostKeyDNS yes",
        "ControlMaster auto\n  ControlPath {control}",
    ],
    ids=lambda text: text.partition(" ")[0] + text.partition(" ")[2][:3].strip(),
)
def test_another_machine_is_refused_whatever_else_would_trust_it(site: Site, tmp_path: Path, trusting: str) -> None:
    """The one that answers has a key of which the configuration approves, and the file does not; it stays as it was."""
    expected, posing = site.serve(), site.serve()
    everything, control = tmp_path / "all", tmp_path / "m"
    everything.write_text(posing.line() + posing.line("*"))
    site.configure(f"Host *\n  {trusting.format(all=everything, control=control)}\n")
    known = site.known(expected)
    before = Path(known).read_text()
    master = None
    if "ControlMaster" in trusting:
        words = ["ssh", "-N", "-p", str(posing.port), "-i", site.key, "-o", f"UserKnownHostsFile={everything}"]
        master = subprocess.Popen([*words, "127.0.0.1"], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENT_S
        while not control.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    try:
        wanted = host(site, posing, known)
        assert "host key is not known here" in answer(wanted, tmp_path / "c")
        direct = subprocess.run(wanted.command("echo", "there"), capture_output=True, text=True, check=False)
        assert direct.stdout == ""
    finally:
        if master is not None:
            master.terminate()
            master.wait(_PATIENT_S)
    assert Path(known).read_text() == before


@pytest.mark.parametrize("hops", [1, 2], ids=["one", "two"])
def test_jump_hosts_are_known_by_the_same_file_alone(site: Site, tmp_path: Path, hops: int) -> None:
    """With their keys in it they are passed through; without, none is, though the configuration trusts them."""
    target, *jumps = (site.serve() for _ in range(hops + 1))
    everything = tmp_path / "all"
    everything.write_text("".join(jump.line() for jump in jumps))
    names = ",".join(f"jump{number}" for number in range(hops))
    entries = "".join(f"Host jump{n}\n  HostName 127.0.0.1\n  Port {jump.port}\n" for n, jump in enumerate(jumps))
    site.configure(
        f"{entries}Host target\n  HostName 127.0.0.1\n  Port {target.port}\n  ProxyJump {names}\nHost *\n"
        f"  User {getpass.getuser()}\n  IdentityFile {site.key}\n  UserKnownHostsFile {everything}\n"
    )
    known = site.known(target, *jumps)
    assert answer(SshHost(host="target", known_hosts=known), tmp_path / "c") == "there"
    for left_out in jumps:
        known = site.known(target, *(jump for jump in jumps if jump is not left_out))
        assert "host key is not known here" in answer(SshHost(host="target", known_hosts=known), tmp_path / "d")


def test_jumps_in_a_circle_end(site: Site, tmp_path: Path) -> None:
    """ssh says so of those that lead to themselves; of others we do."""
    server = site.serve()
    known = site.known(server)
    site.configure("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    assert "circle of jump hosts" in answer(SshHost(host="a", known_hosts=known), tmp_path / "c")
    site.configure("Host *\n  ProxyJump a\n")
    assert "loop" in answer(SshHost(host="a", known_hosts=known), tmp_path / "d")
