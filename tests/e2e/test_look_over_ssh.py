"""Looking into nodes on a machine that is reached by SSH, from a process that has neither its pool nor an engine."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import skyward as sky
from tests.e2e.commands import SKYWARD
from tests.e2e.look_functions import processes, serve
from tests.e2e.sshd import Server, Site, site
from tests.e2e.stand import IMAGE
from tests.e2e.terminal import Terminal
from tests.waiting import wait_until

__all__ = ["site"]

pytestmark = pytest.mark.parametrize("site", ["OpenSSH"], indirect=True)


@pytest.fixture
def server(site: Site) -> Server:
    """A machine whose engine is this one's."""
    return site.serve(f"SetEnv=DOCKER_HOST={os.environ['DOCKER_HOST']}")


@pytest.fixture
def pool(site: Site, server: Server) -> Iterator[sky.ComputePool]:
    """A node there."""
    provider = sky.SSH(f"{getpass.getuser()}@127.0.0.1:{server.port}", key=site.key, known_hosts=site.known(server))
    with sky.ComputePool(provider, image=IMAGE, display="quiet") as pool:
        yield pool


@pytest.fixture
def words(site: Site, server: Server, monkeypatch: pytest.MonkeyPatch, pool: sky.ComputePool) -> list[str]:
    """What says where it is, to a process that finds no engine here."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///dev/null/none/docker.sock")
    host = f"{getpass.getuser()}@127.0.0.1:{server.port}"
    return ["--at", f"ssh://{host}?key={site.key}&known_hosts={site.folder / 'known'}"]


def run(*given: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command of skyward."""
    return subprocess.run([*SKYWARD, *map(str, given)], input=stdin, capture_output=True, check=False, timeout=120)


def test_all_four_go_through_the_connection(pool: sky.ComputePool, words: list[str], tmp_path: Path) -> None:
    """A command with its streams and status, files both ways, a port, a terminal; nothing is left there."""
    data = os.urandom(3_000_000)
    done = run("exec", *words, pool.id, "--", "sh", "-c", "cat; pwd >&2; exit 3", stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (3, data, b"/work\n")

    (tmp_path / "data").write_bytes(data)
    assert run("cp", *words, tmp_path / "data", f"{pool.id}:0:there").returncode == 0
    assert run("cp", *words, f"{pool.id}::there", tmp_path / "back").returncode == 0
    assert (tmp_path / "back").read_bytes() == data

    with forward(words, pool, serve() >> pool) as here, socket.create_connection(("127.0.0.1", here), 60) as sock:
        sock.sendall(b"live")
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b"evil"

    with Terminal([*SKYWARD, "shell", *words, pool.id], rows=30, columns=50) as terminal:
        before = terminal.settings
        terminal.type("stty size; exit 5\r")
        terminal.wait_for("30 50")
        assert terminal.wait() == 5
        assert terminal.settings == before
    wait_until(lambda: not (processes("runner.entry") >> pool))


@contextmanager
def forward(words: list[str], pool: sky.ComputePool, port: int) -> Iterator[int]:
    """A forward to a port of the node; the port here."""
    command = [*SKYWARD, "forward", *words, pool.id, str(port), "--local", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["local"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_connection_that_ends_is_said(pool: sky.ComputePool, words: list[str], server: Server) -> None:
    """And the terminal is as it was; a client that is ended leaves nothing on the machine."""
    command = [*SKYWARD, "exec", *words, pool.id, "--", "sh", "-c", "echo ready; sleep 98761"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout
        assert client.stdout.readline() == b"ready\n"
        client.terminate()
    wait_until(lambda: not (processes("98761") >> pool))
    with Terminal([*SKYWARD, "shell", *words, pool.id]) as terminal:
        before = terminal.settings
        terminal.type("echo $((6 * 7)) is it\r")
        terminal.wait_for("42 is it")
        cut = subprocess.run(
            ["pgrep", "-P", str(terminal.process.pid), "ssh"], capture_output=True, text=True, check=True
        )
        os.kill(int(cut.stdout.split()[0]), signal.SIGKILL)

        assert terminal.wait() == 9
        terminal.wait_for("is unreachable: the SSH connection to")
        assert terminal.settings == before
    wait_until(lambda: not (processes("runner.entry") >> pool))
