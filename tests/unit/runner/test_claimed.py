"""The program of a pod by itself: whom it accepts, what node it becomes, how it ends."""

from __future__ import annotations

import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from skyward.model.instance import ANNOUNCEMENT, InstanceInfo
from skyward.nodes.claimed import identities
from skyward.nodes.node import parse_announcement
from skyward.runner.config import RunnerSettings
from skyward.runner.entry.claimed import EXIT, HEADER, OUTPUT, port_of
from skyward.wire.handshake import agent_endpoint, connect, new_key
from skyward.wire.tls import Identity, plain_end

WAIT_S = 60.0
PROGRAM = """
import sys
from pathlib import Path
from skyward.runner.entry import claimed
claimed.POD_SECRETS = Path(sys.argv[1])
sys.exit(claimed.run_pod())
"""


def free_pool() -> str:
    """A pool whose tasks find their port free: tests of other checkouts may run beside these."""
    while True:
        pool = secrets.token_hex(4)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port_of(pool, 3)))
            except OSError:
                continue
            return pool


POOL, KEY = free_pool(), new_key()
Start = Callable[..., subprocess.Popen[str]]


class Client:
    """A pool's client, as its connections to a task."""

    def __init__(self, identity: Identity) -> None:
        self._context = identity.context(server=False)

    def connect(self, word: str) -> ssl.SSLSocket:
        """A connection that has said what it is for, tried until the task listens."""
        while True:
            try:
                sock = socket.create_connection(("127.0.0.1", port_of(POOL, 3)), timeout=WAIT_S)
                break
            except ConnectionRefusedError:
                continue
        tls = self._context.wrap_socket(sock)
        tls.sendall(f"{word}\n".encode())
        return tls

    def claim(self) -> socket.socket:
        """Claim the task, whose greeting is a line."""
        tls = self.connect("claim")
        greeting = b""
        while not greeting.endswith(b"\n"):
            data = tls.recv(1)
            assert data, "the task closed the connection"
            greeting += data
        sock = plain_end(tls, "client")
        sock.settimeout(WAIT_S)
        return sock


@pytest.fixture(scope="module")
def pool() -> tuple[Identity, Identity]:
    """The identities of a pool: the client's and the nodes'."""
    (client, *_), (node, *_) = identities("Kubernetes", POOL, 1)
    return client, node


@pytest.fixture
def start(tmp_path: Path, pool: tuple[Identity, Identity]) -> Iterator[Start]:
    """Start a task's program; it is killed at the end of the test."""
    secret = tmp_path / "identity"
    secret.write_text(json.dumps(asdict(pool[1])))
    started = []

    def go(lease_s: float = 600.0) -> subprocess.Popen[str]:
        settings = {
            "pool": POOL,
            "lease_s": lease_s,
            "number": 3,
            "inside": False,
            "gains_privileges": False,
        }
        own = {"SKYWARD_POD": json.dumps(settings), "SKYWARD_POD_ADDRESS": "127.0.0.1"}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **own},
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.communicate()


def order() -> bytes:
    """What a node is to be."""
    place = InstanceInfo(node=2, total_nodes=3, head_addr="127.0.0.1", head_port=1)
    runner = RunnerSettings(lease_s=600.0).to_json()
    document = {"compute_pool": place.to_json(), "runner": runner, "key": KEY.hex(), "env": {"HELLO": "there"}}
    return json.dumps({"do": "start", **document}).encode() + b"\n"


def heard(session: socket.socket) -> Iterator[tuple[int, bytes]]:
    """What a task sends to the client that has claimed it."""
    stream = session.makefile("rb")
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        kind, size = HEADER.unpack(header)
        yield kind, stream.read(size)


def test_a_task_becomes_the_node_that_its_client_wants(start: Start, pool: tuple[Identity, Identity]) -> None:
    """The runner announces itself, is reached through TLS, and ends when it is asked to, with status 0."""
    task, client = start(), Client(pool[0])
    session = client.claim()
    session.sendall(order())
    news = heard(session)
    said = ""
    while ANNOUNCEMENT not in said or not said.endswith("\n"):
        kind, data = next(news)
        assert kind == OUTPUT, data
        said += data.decode()
    announced = parse_announcement(next(line for line in said.splitlines() if line.startswith(ANNOUNCEMENT)))
    assert announced
    assert "NoNewPrivs:\t1" in Path(f"/proc/{task.pid}/status").read_text()
    tls = client.connect(f"open {announced.agent}")
    assert tls.recv(3) == b"ok\n"
    agent = connect(plain_end(tls, "agent"), KEY, agent_endpoint(2), pool[1].end_point)
    session.sendall(b'{"do": "stop"}\n')
    assert EXIT in [kind for kind, _ in news]
    agent.close()
    assert task.wait(WAIT_S) == 0
    session.close()


def test_a_task_accepts_nobody_without_the_pools_certificate(start: Start, pool: tuple[Identity, Identity]) -> None:
    """One that another authority made, and none at all: the connection ends before anything of it is read."""
    task = start()
    session = Client(pool[0]).claim()
    stranger = identities("Kubernetes", "another", 1)[0][0]
    for identity in (Identity(stranger.certificate, stranger.private_key, peer=pool[0].peer), None):
        context = identity.context(server=False) if identity else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if identity is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", port_of(POOL, 3)), timeout=WAIT_S) as sock,
            pytest.raises(OSError, match=r"."),  # how it breaks is TLS's matter
            context.wrap_socket(sock) as tls,
        ):
            tls.sendall(b"claim\n")
            assert not tls.recv(1), "the task answers"
            raise OSError("the connection was closed without an answer")
    assert task.poll() is None
    session.close()


@pytest.mark.alone
def test_silent_connections_keep_nobody_out(start: Start, pool: tuple[Identity, Identity]) -> None:
    """Peers that do not even begin TLS, more than are waited for at once."""
    start()
    session = Client(pool[0]).claim()
    session.close()
    silent = [socket.create_connection(("127.0.0.1", port_of(POOL, 3)), timeout=WAIT_S) for _ in range(12)]
    began = time.monotonic()
    Client(pool[0]).claim().close()
    assert time.monotonic() - began < 9  # less than one of them may take
    for sock in silent:
        sock.close()


def test_a_task_ends_when_no_client_has_come_for_its_lease(start: Start) -> None:
    """With status 0, and a line."""
    task = start(lease_s=0.2)
    assert task.wait(WAIT_S) == 0
    assert task.stdout
    assert "no client came for 0.2 s" in task.stdout.read()
