"""The SSH connection by OpenSSH and by paramiko: sessions, forwards, ends, agents, and which of the two is chosen."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
import pytest

import skyward as sky
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh import connection as connections
from skyward.ssh.connection import OpenSshConnection, SshConnection
from skyward.ssh.paramiko_client import ParamikoConnection
from tests.e2e.sshd import PATIENT_S, Server, Site, site
from tests.e2e.stand import IMAGE
from tests.e2e.stand_functions import places, reverse
from tests.waiting import wait_until

__all__ = ["site"]

SILENT_S = 15.0  # a machine that answers nothing is given up by then


@contextmanager
def connected(host: SshHost, folder: Path, *words: str) -> Iterator[SshConnection]:
    folder.mkdir(mode=0o700)
    connection = connections.connect(host, folder, *words)
    try:
        yield connection
    finally:
        connection.kill()


@pytest.fixture
def server(site: Site) -> Server:
    return site.serve()


@pytest.fixture
def host(site: Site, server: Server) -> SshHost:
    return site.host(server, site.known(server))


@pytest.fixture
def clean_engine() -> Iterator[Callable[[str], bool]]:
    """Whether the engine has no container of a pool."""
    engine = docker.from_env()
    label = "skyward.pool={}".format
    yield lambda pool: not engine.containers.list(all=True, ignore_removed=True, filters={"label": label(pool)})
    engine.close()


def all_of(end: socket.socket) -> bytes:
    return b"".join(iter(lambda: end.recv(1 << 16), b""))


def echo(listener: socket.socket) -> None:
    """Give back what comes, once all of it is there."""
    while True:
        try:
            end, _ = listener.accept()
        except OSError:
            return
        with end, suppress(ConnectionError):  # the sshd in between may be killed
            end.sendall(all_of(end))


def send_all(end: socket.socket, payload: bytes) -> None:
    end.sendall(payload)
    end.shutdown(socket.SHUT_WR)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[list[str]]:
    """A unix socket and a port of loopback where somebody answers, as `forward` names them."""
    unix, tcp = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    unix.bind(str(tmp_path / "echo"))
    unix.listen()
    for listener in (unix, tcp):
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
    yield [str(tmp_path / "echo"), f"127.0.0.1:{tcp.getsockname()[1]}"]
    for listener in (unix, tcp):
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_session_takes_and_gives_lines(host: SshHost, tmp_path: Path) -> None:
    """Words arrive as they are; the end of the input is the end of the command, and of the connection."""
    with connected(host, tmp_path / "c", "sh", "-c", 'echo "$1"; cat; echo last', "sh", "it's $HOME") as connection:
        connection.send("one")
        connection.send("two")
        assert [connection.wait_line(PATIENT_S) for _ in range(3)] == ["it's $HOME", "one", "two"]
        assert connection.wait_line(0.1) is None
        connection.close()
        assert connection.wait_line(PATIENT_S) == "last"
        assert connection.ended.wait(PATIENT_S)


def test_sockets_are_forwarded(host: SshHost, listening: list[str], tmp_path: Path) -> None:
    """Unix sockets and ports, several connections side by side, more than a window holds; an end passes through."""
    payload = os.urandom(1 << 20) * 20
    with connected(host, tmp_path / "c", "cat") as connection:
        connection.send("there")
        assert connection.wait_line(PATIENT_S) == "there"

        def check(local: Path) -> None:
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(str(local))
                threading.Thread(target=send_all, args=(end, payload)).start()
                found.append(all_of(end) == payload)

        found: list[bool] = []
        forwards = [connection.forward(remote) for remote in listening]
        threads = [threading.Thread(target=check, args=(local,)) for local in forwards * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENT_S)
        assert found == [True] * 4
        assert {local.stat().st_mode & 0o777 for local in forwards} == {0o600}


def test_a_forward_to_nobody_ends_at_once(host: SshHost, tmp_path: Path) -> None:
    """What connects to it is hung up on, and the connection lives."""
    with connected(host, tmp_path / "c", "cat") as connection:
        connection.send("x")
        assert connection.wait_line(PATIENT_S) == "x"
        local = connection.forward(str(tmp_path / "nobody"))
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(PATIENT_S)
            end.connect(str(local))
            assert end.recv(1) == b""
        connection.send("y")
        assert connection.wait_line(PATIENT_S) == "y"


def test_a_machine_that_answers_nothing_is_given_up(host: SshHost, tmp_path: Path) -> None:
    """Its sshd is stopped: nothing ends the connection but its silence."""
    with connected(host, tmp_path / "c", "sh", "-c", "echo $PPID; cat") as connection:
        sshd = int(connection.wait_line(PATIENT_S) or 0)
        os.kill(sshd, signal.SIGSTOP)
        try:
            assert connection.ended.wait(SILENT_S)
            assert "not responding" in connection.why
        finally:
            os.kill(sshd, signal.SIGKILL)


def test_a_connection_that_breaks_ends_forwards_too(host: SshHost, listening: list[str], tmp_path: Path) -> None:
    """Its sshd is killed: who waits at a forward is told, and a new one is an error."""
    with connected(host, tmp_path / "c", "sh", "-c", "echo $PPID; cat") as connection:
        sshd = int(connection.wait_line(PATIENT_S) or 0)
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(PATIENT_S)
            end.connect(str(connection.forward(listening[0])))
            end.sendall(b"x")
            os.kill(sshd, signal.SIGKILL)
            assert connection.ended.wait(PATIENT_S)
            with suppress(ConnectionResetError):
                assert end.recv(1) == b""
        with pytest.raises(ProviderError, match=r"cannot be reached through SSH: .*The SSH connection ended"):
            connection.forward(listening[0])


@pytest.mark.parametrize("line", ["@revoked * {key}", "* {key}\n@revoked * {key}"], ids=["only", "and trusted"])
def test_a_revoked_host_key_is_refused(site: Site, server: Server, line: str, tmp_path: Path) -> None:
    """Also where another line trusts it."""
    key = " ".join(server.host_key.with_suffix(".pub").read_text().split()[:2])
    known = tmp_path / "known"
    known.write_text(f"{line.format(key=key)}\n")
    with connected(site.host(server, str(known)), tmp_path / "c", "echo", "there") as connection:
        assert connection.wait_line(PATIENT_S) is None
        assert "host key" in connection.problem


@pytest.mark.parametrize("pattern", ["hashed", "[127.0.0.*]:*", "!other,[127.0.0.?]:{port}"])
def test_names_of_known_hosts_may_be_hashed_or_patterns(
    site: Site, server: Server, pattern: str, tmp_path: Path
) -> None:
    """As ssh-keygen -H writes them, with wildcards, and lists of them."""
    known = tmp_path / "known"
    known.write_text(server.line("" if pattern == "hashed" else pattern.format(port=server.port)))
    if pattern == "hashed":
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
        assert "127.0.0.1" not in known.read_text()
    with connected(site.host(server, str(known)), tmp_path / "c", "echo", "there") as connection:
        assert connection.wait_line(PATIENT_S) == "there"


def test_another_key_of_a_known_machine_is_told_apart(site: Site, tmp_path: Path) -> None:
    """It may have been installed anew, or be another machine; nobody is advised to just trust it."""
    expected, posing = site.serve(), site.serve()
    known = tmp_path / "known"
    known.write_text(expected.line(f"[127.0.0.1]:{posing.port}"))
    with connected(site.host(posing, str(known)), tmp_path / "c", "echo", "there") as connection:
        assert connection.wait_line(PATIENT_S) is None
        assert "Compare the key with its owner" in connection.problem


def test_a_key_with_a_passphrase_is_the_agents(
    site: Site, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the agent nobody is asked for the passphrase; with it the key is good."""
    host = site.host(server, site.known(server))
    private = Path(site.key)
    plain = private.read_bytes()
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "sesame", "-f", site.key], check=True, capture_output=True)
    with connected(host, tmp_path / "c", "echo", "there") as connection:
        assert connection.wait_line(PATIENT_S) is None
        assert "accepts none of this user's keys" in connection.problem
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "agent").exists, PATIENT_S)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        locked = private.read_bytes()
        private.write_bytes(plain)
        subprocess.run(["ssh-add", "-q", site.key], check=True, stdin=subprocess.DEVNULL)
        private.write_bytes(locked)
        with connected(host, tmp_path / "d", "echo", "there") as connection:
            assert connection.wait_line(PATIENT_S) == "there"
    finally:
        agent.terminate()
        agent.wait(PATIENT_S)


def test_included_configurations_count(site: Site, server: Server, tmp_path: Path) -> None:
    """A name that only an included file explains, with its user, key and host keys."""
    more = tmp_path / "more"
    more.write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {site.key}\n"
        f"  UserKnownHostsFile {site.known(server)}\n"
    )
    site.configure(f"Include {more}\nUser {os.environ.get('USER', 'root')}\n")
    with connected(SshHost(host="box"), tmp_path / "c", "echo", "there") as connection:
        assert connection.wait_line(PATIENT_S) == "there"


def test_a_pool_runs_by_either_client(site: Site, clean_engine: Callable[[str], bool]) -> None:
    """Nodes on this machine's own engine, as if it were another: arguments and results of many packets, and its end."""
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    server = site.serve(f"SetEnv=DOCKER_HOST={engine}")
    name = f"{getpass.getuser()}@127.0.0.1:{server.port}"
    provider = sky.SSH(name, key=site.key, known_hosts=site.known(server))
    with sky.ComputePool(provider, nodes=2, image=IMAGE, display="quiet") as pool:
        payloads = [os.urandom(3_000_000) for _ in range(4)]
        results = sky.gather(*[reverse(payload) for payload in payloads]) >> pool
        assert list(results) == [payload[::-1] for payload in payloads]
        assert [place["node"] for place in places() @ pool] == [0, 1]
    wait_until(lambda: clean_engine(pool.id), PATIENT_S)
    assert [found.findings for found in provider.host_reports()] == [()]


def test_openssh_is_chosen_where_it_is_installed(
    host: SshHost, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko is imported and used only where there is no ssh command."""
    monkeypatch.undo()
    with connected(host, tmp_path / "c", "echo", "there") as connection:
        assert isinstance(connection, OpenSshConnection)
        assert "OpenSSH" in connections.client_version()
    monkeypatch.setenv("PATH", str(tmp_path))
    with connected(host, tmp_path / "d", "echo", "there") as connection:
        assert isinstance(connection, ParamikoConnection)
        assert connection.wait_line(PATIENT_S) == "there"
        assert connections.client_version().startswith("paramiko ")
        with pytest.raises(ProviderError, match="take OpenSSH's client, which is not installed"):
            connection.through
    monkeypatch.setattr(connections, "find_spec", lambda _name: None)
    with pytest.raises(ProviderError, match=r"could not be started .*install 'skyward\[ssh\]'"):
        connections.connect(host, tmp_path / "d", "echo")
    assert connections.client_version() == ""
