"""Real sshds on loopback, with a user's keys and SSH configuration, for both implementations of the connection."""

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

from skyward.model.ssh import SshHost
from skyward.ssh import connection as connections

SSHD = "/usr/sbin/sshd"
PATIENT_S = 60.0


def keygen(path: Path) -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


@dataclass(frozen=True)
class Server:
    """An sshd on loopback."""

    port: int
    host_key: Path
    process: subprocess.Popen[bytes]

    def line(self, name: str = "") -> str:
        """Its line in a file of known hosts."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {self.host_key.with_suffix('.pub').read_text()}"


@dataclass
class Site:
    """A user's keys and configuration."""

    folder: Path
    serve: Callable[..., Server]
    client: str

    @property
    def key(self) -> str:
        return str(self.folder / "key")

    def known(self, *servers: Server, name: str = "known") -> str:
        path = self.folder / name
        path.write_text("".join(server.line() for server in servers))
        return str(path)

    def host(self, server: Server, known: str) -> SshHost:
        return SshHost(host="127.0.0.1", user=getpass.getuser(), port=server.port, key=self.key, known_hosts=known)

    def configure(self, text: str) -> None:
        (self.folder / "config").write_text(text)


@pytest.fixture(params=["OpenSSH", "paramiko"])
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Site]:
    """ssh reads a configuration of this test's; jumps go through the same wrapper, as through any ssh on the PATH.

    paramiko reads the same one, as that of this user.
    """
    if not Path(SSHD).exists():
        pytest.skip("takes OpenSSH's server (Debian: openssh-server)")
    if request.param == "paramiko":
        monkeypatch.setattr(connections, "uses_paramiko", lambda: True)
        monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser()))
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".ssh").mkdir(mode=0o700)
        (tmp_path / ".ssh" / "config").symlink_to(tmp_path / "config")
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    keygen(tmp_path / "key")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Debian's sshd wants it, and its service makes it
    running: list[subprocess.Popen[bytes]] = []

    def serve(*more: str) -> Server:
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
        settings = [*(f"{name}={value}" for name, value in options.items()), *more]
        words = [word for setting in settings for word in ("-o", setting)]
        command = [SSHD, "-D", "-e", "-f", "/dev/null", "-p", str(port), *words]
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + PATIENT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return Server(port, host_key, running[-1])

    made = Site(tmp_path, serve, request.param)
    made.configure("")
    yield made
    for process in running:
        process.terminate()
        process.wait(PATIENT_S)
