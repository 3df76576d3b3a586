"""Both sides prove that they hold the key before anything else is read; versions are compared after."""

from __future__ import annotations

import pickle
import secrets
import socket
import struct
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward.errors import AuthenticationError, VersionError, WireError
from skyward.wire import handshake
from skyward.wire.frames import Connection
from skyward.wire.messages import PROTOCOL

KEY = secrets.token_bytes(32)


def _meet(
    client_key: bytes,
    runner_key: bytes,
    client_at: str = "node 0 agent",
    runner_at: str = "node 0 agent",
    channels: tuple[bytes, bytes] = (b"", b""),
) -> Any:
    """Let both sides run their half; returns (client's result, runner's result), exceptions as values."""
    left, right = socket.socketpair()
    outcome: dict[str, Any] = {}

    def runner() -> None:
        try:
            outcome["runner"] = handshake.accept(right, runner_key, runner_at, channels[1])
        except Exception as error:
            outcome["runner"] = error

    thread = threading.Thread(target=runner)
    thread.start()
    try:
        outcome["client"] = handshake.connect(left, client_key, client_at, channels[0])
    except Exception as error:
        outcome["client"] = error
    thread.join(60)
    for side in outcome.values():
        if isinstance(side, Connection):
            side.close()
    return outcome["client"], outcome["runner"]


def test_same_key_connects() -> None:
    """Two sides with one key get a connection."""
    client, runner = _meet(KEY, KEY)

    assert isinstance(client, Connection)
    assert isinstance(runner, Connection)


@pytest.mark.parametrize(
    "other",
    [
        {"runner_key": secrets.token_bytes(32)},
        {"client_at": "node 1 agent"},
        {"channels": (b"a" * 32, b"b" * 32)},
        {"channels": (b"a" * 32, b"")},
        {"channels": (b"", b"b" * 32)},
    ],
    ids=["key", "endpoint", "channel", "channel on one side", "channel on the other side"],
)
def test_a_client_refuses_whoever_is_not_whom_it_wants(other: dict[str, Any]) -> None:
    """An impostor, and a connection that was relayed to another node or through another channel."""
    client, runner = _meet(**{"client_key": KEY, "runner_key": KEY, **other})

    assert isinstance(client, AuthenticationError)
    assert isinstance(runner, WireError)


def test_runner_refuses_a_client_without_the_key() -> None:
    """A peer that speaks the protocol but lacks the key is refused after its proof, before any frame."""
    left, right = socket.socketpair()
    refused: list[BaseException] = []

    def runner() -> None:
        try:
            handshake.accept(right, KEY, "node 0 agent")
        except AuthenticationError as error:
            refused.append(error)

    thread = threading.Thread(target=runner)
    thread.start()
    left.sendall(struct.pack("!8sH32s", b"SKYWARD\0", PROTOCOL, bytes(32)))
    left.recv(1000)
    left.sendall(bytes(32))
    thread.join(60)
    left.close()

    assert "without this node's key" in str(refused[0])


def test_a_replayed_conversation_fails() -> None:
    """What a genuine client once sent does not open a second connection: the runner's nonce has changed."""
    said: list[bytes] = []

    class Recorder(socket.socket):
        def sendall(self, data: Any, flags: int = 0) -> None:
            said.append(bytes(data))
            super().sendall(data, flags)

    left, right = socket.socketpair()
    recorder = Recorder(fileno=left.detach())
    accepted: list[Connection] = []
    thread = threading.Thread(target=lambda: accepted.append(handshake.accept(right, KEY, "node 0 agent")))
    thread.start()
    client = handshake.connect(recorder, KEY, "node 0 agent")
    thread.join(60)
    client.close()
    accepted[0].close()

    again_left, again_right = socket.socketpair()
    again_left.sendall(b"".join(said))
    with pytest.raises(AuthenticationError):
        handshake.accept(again_right, KEY, "node 0 agent")
    again_left.close()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"python": "3.12.1"}, r"client runs Python 3\.11\.7, node 1 agent runs Python 3\.12\.1"),
        ({"cloudpickle": "2.0.0"}, r"client has cloudpickle 3\.1\.2, node 1 agent has 2\.0\.0"),
    ],
    ids=["python minor", "cloudpickle"],
)
def test_versions_that_do_not_fit(node: dict[str, str], message: str) -> None:
    """A difference that breaks pickles is refused, naming both sides."""
    client = {"python": "3.11.7", "cloudpickle": "3.1.2", "skyward": "0.1.0"}

    with pytest.raises(VersionError, match=message):
        handshake.check_versions(client, client | node, "node 1 agent")


def test_a_silent_peer_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends a byte now and then does not hold a runner beyond the handshake's time."""
    monkeypatch.setattr(handshake, "TIMEOUT_S", 1.0)
    left, right = socket.socketpair()
    stop = threading.Event()

    def dribble() -> None:
        while not stop.wait(0.5):
            try:
                left.send(b"S")
            except OSError:
                return

    thread = threading.Thread(target=dribble)
    thread.start()
    started = time.monotonic()
    with pytest.raises(WireError):
        handshake.accept(right, KEY, "node 0 agent")
    took = time.monotonic() - started
    stop.set()
    thread.join()
    left.close()

    assert took < 10  # without a deadline for all of it, as many bytes as a hello has take twice as long


@given(st.binary(max_size=400))
def test_no_bytes_of_a_stranger_are_a_handshake(data: bytes) -> None:
    """Whatever arrives from a peer without the key ends in an error, and nothing of it is unpickled."""
    left, right = socket.socketpair()
    left.sendall(data)
    left.shutdown(socket.SHUT_WR)
    with left, pytest.raises(WireError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle, "loads", lambda *_: pytest.fail("something was unpickled"))
        handshake.accept(right, KEY, "node 0 agent")
