"""TLS between two sides that know each other, as plain sockets at both ends."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from skyward.nodes.claimed import identities
from skyward.wire.tls import Identity, plain_end

WAIT_S = 60.0
BIG = os.urandom(1 << 20) * 8


@pytest.fixture(scope="module")
def known() -> tuple[Identity, Identity]:
    """A client's identity and that of its nodes."""
    (client, *_), (node, *_) = identities("Slurm", "cafe1234", 1)
    return client, node


@pytest.fixture
def ends(known: tuple[Identity, Identity]) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two plain ends of a TLS connection."""
    near, far = socket.socketpair()
    sides: dict[bool, ssl.SSLSocket] = {}

    def serve() -> None:
        sides[True] = known[1].context(server=True).wrap_socket(far, server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    sides[False] = known[0].context(server=False).wrap_socket(near)
    thread.join(WAIT_S)
    plain = plain_end(sides[False], "client"), plain_end(sides[True], "node")
    for sock in plain:
        sock.settimeout(WAIT_S)
    yield plain
    for sock in plain:
        sock.close()


def read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := sock.recv(1 << 20)):
        data += chunk
    return bytes(data)


def test_what_goes_in_comes_out(ends: tuple[socket.socket, socket.socket]) -> None:
    """Words at once; more than any buffer holds, in both directions at the same time."""
    client, node = ends
    client.sendall(b"hello")
    assert read(node, 5) == b"hello"
    senders = [threading.Thread(target=sock.sendall, args=(BIG,)) for sock in ends]
    got: dict[str, bytes] = {}
    reader = threading.Thread(target=lambda: got.update(node=read(node, len(BIG))))
    for thread in (*senders, reader):
        thread.start()
    got["client"] = read(client, len(BIG))
    for thread in (*senders, reader):
        thread.join(WAIT_S)
    assert got == {"client": BIG, "node": BIG}


def test_the_end_of_one_side_is_that_of_the_other(ends: tuple[socket.socket, socket.socket]) -> None:
    """Who waits for the other hears of it; who goes on writing, too."""
    client, node = ends
    client.close()
    assert node.recv(1) == b""
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        while True:
            node.sendall(BIG)


def test_nothing_passes_in_the_clear(known: tuple[Identity, Identity]) -> None:
    """What the network sees is TLS 1.3, and a side that offers less is refused."""
    client, node = (identity.context(server=server) for identity, server in zip(known, (False, True), strict=True))
    assert client.minimum_version is ssl.TLSVersion.TLSv1_3
    assert node.minimum_version is ssl.TLSVersion.TLSv1_3
    assert node.verify_mode is ssl.CERT_REQUIRED
    assert client.verify_mode is ssl.CERT_REQUIRED


def test_a_private_key_is_in_no_text(known: tuple[Identity, Identity]) -> None:
    """An identity can be printed."""
    assert "PRIVATE" not in repr(known)
