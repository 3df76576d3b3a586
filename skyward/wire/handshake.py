"""Mutual authentication before anything else is read, then the comparison of versions.

Both sides send `magic, protocol, nonce`. Each then proves with HMAC-SHA256 over both nonces that it holds the node's
key: the runner first, so that a client never answers an impostor. Each node has its own key. The label of the endpoint
(node and process) and the identifier of the encrypted channel, if there is one, are part of the proof, so that a
connection cannot be relayed to another process or through another channel. Nothing is unpickled here.
"""

from __future__ import annotations

import hmac
import secrets
import struct
import sys
from typing import Any

from skyward._version import __version__
from skyward.errors import AuthenticationError, VersionError, WireError
from skyward.system import socket, time
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import KEY_BYTES, PROTOCOL, Kind, decode, encode

TIMEOUT_S = 10.0  # for the whole handshake; a legitimate peer is faster
_MAGIC = b"SKYWARD\0"
_HELLO = struct.Struct("!8sH32s")
_PROOF_BYTES = 32


def new_key() -> bytes:
    """Return a fresh key for one start of one node."""
    return secrets.token_bytes(KEY_BYTES)


def versions() -> dict[str, Any]:
    """Return the versions of this side, which are compared at connection."""
    import cloudpickle

    return {
        "skyward": __version__,
        "protocol": PROTOCOL,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cloudpickle": cloudpickle.__version__,
    }


def agent_endpoint(node: int) -> str:
    """Return the name under which a node's agent is authenticated."""
    return f"node {node} agent"


def worker_endpoint(node: int, worker: int, generation: int) -> str:
    """Return the name under which a worker is authenticated; `generation` counts its restarts."""
    return f"node {node} worker {worker}.{generation}"


def connect(sock: socket.socket, key: bytes, endpoint: str, channel: bytes = b"") -> Connection:
    """Perform the client's side of the handshake.

    Args:
        sock: a connected stream socket; closed on failure.
        key: the node's key.
        endpoint: what the socket should lead to, such as "node 1 agent".
        channel: identifier of the encrypted channel that the socket uses, known to both its ends: for TLS the hash of
            the certificate presented by the node's end. Empty if there is none.

    Raises:
        AuthenticationError: the other side does not hold the key, or is another endpoint.
        VersionError: its versions are incompatible with this client's.
        WireError: the connection broke.
    """
    deadline = time.monotonic() + TIMEOUT_S
    try:
        ours, theirs = _exchange_hellos(sock, endpoint, deadline)
        proof = _receive(sock, _PROOF_BYTES, endpoint, deadline)
        if not hmac.compare_digest(proof, _proof(key, b"runner", endpoint, channel, ours, theirs)):
            raise AuthenticationError(
                f"{endpoint} does not hold its key of this pool; the connection was closed. "
                "Another program may have taken its address: close the pool and open it again."
            )
        sock.sendall(_proof(key, b"client", endpoint, channel, ours, theirs))
        connection = Connection(sock)
        _limit(sock, deadline)
        frames = connection.receive()
        sock.settimeout(None)
        if not frames or frames[0].kind != Kind.VERSIONS:
            raise AuthenticationError(f"{endpoint} refused this client: the keys differ.")
        check_versions(versions(), decode(frames[0].head), endpoint)
        connection.put_back(frames[1:])  # an agent may send messages at once
        return connection
    except OSError as error:
        sock.close()
        raise WireError(f"The connection to {endpoint} broke during the handshake ({error}).") from error
    except BaseException:
        sock.close()
        raise


def accept(sock: socket.socket, key: bytes, endpoint: str, channel: bytes = b"") -> Connection:
    """Perform the runner's side of the handshake; closes the socket and raises as `connect` does."""
    deadline = time.monotonic() + TIMEOUT_S
    try:
        ours, theirs = _exchange_hellos(sock, "the client", deadline)
        sock.sendall(_proof(key, b"runner", endpoint, channel, theirs, ours))
        proof = _receive(sock, _PROOF_BYTES, "the client", deadline)
        if not hmac.compare_digest(proof, _proof(key, b"client", endpoint, channel, theirs, ours)):
            raise AuthenticationError("A client without this node's key tried to connect.")
        connection = Connection(sock)
        connection.send(Frame(Kind.VERSIONS, 0, encode(versions())))
        return connection
    except OSError as error:
        sock.close()
        raise WireError(f"A client's connection broke during the handshake ({error}).") from error
    except BaseException:
        sock.close()
        raise


def check_versions(client: dict[str, Any], node: dict[str, Any], endpoint: str) -> None:
    """Raise VersionError unless a client and a node of these versions can work together."""
    minor = [".".join(str(side.get("python")).split(".")[:2]) for side in (client, node)]
    if minor[0] != minor[1]:
        raise VersionError(
            f"This client runs Python {client['python']}, {endpoint} runs Python {node.get('python')}; functions "
            f"cannot be sent between minor versions. Use Image(python={minor[0]!r}), or run "
            f"the client with Python {minor[1]}."
        )
    if client["cloudpickle"] != node.get("cloudpickle"):
        raise VersionError(
            f"This client has cloudpickle {client['cloudpickle']}, {endpoint} has {node.get('cloudpickle')}; functions "
            "pickled by one may not load in the other. Rebuild the image, or install the same version here."
        )


def _exchange_hellos(sock: socket.socket, peer: str, deadline: float) -> tuple[bytes, bytes]:
    ours = secrets.token_bytes(32)
    _limit(sock, deadline)
    sock.sendall(_HELLO.pack(_MAGIC, PROTOCOL, ours))
    magic, protocol, theirs = _HELLO.unpack(_receive(sock, _HELLO.size, peer, deadline))
    if magic != _MAGIC:
        raise WireError(f"{peer} does not speak skyward's protocol; the connection was closed.")
    if protocol != PROTOCOL:
        raise VersionError(
            f"This side speaks version {PROTOCOL} of skyward's protocol (skyward {__version__}), {peer} speaks version "
            f"{protocol}. Rebuild the image with this client, or install the same skyward on both sides."
        )
    return ours, theirs


def _proof(key: bytes, side: bytes, endpoint: str, channel: bytes, client_nonce: bytes, runner_nonce: bytes) -> bytes:
    """Return the proof of one side.

    Its input is unambiguous: neither side nor endpoint has a zero byte, and the nonces have a fixed length.
    """
    said = b"\0".join((_MAGIC, side, endpoint.encode(), channel, client_nonce + runner_nonce))
    return hmac.digest(key, said, "sha256")


def _receive(sock: socket.socket, size: int, peer: str, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        _limit(sock, deadline)
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise WireError(f"{peer} closed the connection during the handshake.")
        data += chunk
    return bytes(data)


def _limit(sock: socket.socket, deadline: float) -> None:
    """Limit the next operation to the time left for the whole handshake."""
    sock.settimeout(max(0.001, deadline - time.monotonic()))
