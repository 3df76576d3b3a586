"""Host keys: `known_hosts=` names the only ones to trust, whatever the SSH configuration says beside it.

Real sshds on loopback stand for the machine, and for the one that poses as it.
"""

from __future__ import annotations

import getpass
import subprocess
import time
from pathlib import Path

import pytest

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh import connection as connections
from tests.e2e.sshd import PATIENT_S, Site, site

__all__ = ["site"]


def answer(host: SshHost, folder: Path) -> str:
    """What a command on the machine says; why there is no connection, if there is none."""
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        connection = connections.connect(host, folder, "echo", "there")
    except ProviderError as error:
        return str(error)
    said = connection.wait_line(PATIENT_S)
    assert connection.ended.wait(PATIENT_S)
    return said or connection.problem


def test_a_machine_in_the_file_is_reached(site: Site, tmp_path: Path) -> None:
    """Whatever the signs in the file's name."""
    server = site.serve()
    assert answer(site.host(server, site.known(server, name="known 100%h")), tmp_path / "c") == "there"


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
        deadline = time.monotonic() + PATIENT_S
        while not control.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    try:
        wanted = site.host(posing, known)
        assert "host key is not known here" in answer(wanted, tmp_path / "c")
        direct = subprocess.run(wanted.command("echo", "there"), capture_output=True, text=True, check=False)
        assert direct.stdout == ""
    finally:
        if master is not None:
            master.terminate()
            master.wait(PATIENT_S)
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
    found = "loop" if site.client == "OpenSSH" else "circle of jump hosts"
    assert found in answer(SshHost(host="a", known_hosts=known), tmp_path / "d")
