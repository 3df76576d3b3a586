"""Nodes whose program waits for its client (`skyward.runner.entry.claimed`): claiming, starting, reaching, ending them.

Slurm jobs and Kubernetes pods are such nodes. They differ in how a socket reaches them, and in who knows
how one has ended. Client and program authenticate each other by certificates that the client creates for one pool:
self-signed, pinned by the other side, and never reused.
"""

from __future__ import annotations

import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from skyward.errors import ConfigError, ProviderError, WireError
from skyward.nodes.node import Exit, Launch, RunnerNode, exit_of
from skyward.runner.entry.claimed import CLAIM, EXIT, HEADER, OPEN, START, STOP, keep_alive
from skyward.system import socket, threading
from skyward.wire.frames import tune
from skyward.wire.tls import Identity, end_point, plain_end

if TYPE_CHECKING:
    from skyward.ssh.connection import SshConnection

DIAL_S = 5.0
_END_S = 10.0
_LINE_BYTES = 4096
_BACK = timedelta(days=1)  # allows for differing clocks
_VALID = timedelta(days=3650)  # maximum age of the pool; its keys are deleted with it


@dataclass(frozen=True, slots=True)
class Claim:
    """A waiting program, and this client's connection to it.

    Attributes:
        session: the connection through which this client has claimed it.
        channel: identifier of its TLS certificate, for the handshakes inside.
        free_port: an unused port on its machine.
    """

    session: socket.socket = field(repr=False)
    channel: bytes
    free_port: int


class Claimed(Protocol):
    """A job or pod of a pool, whose program is a node or waits to become one.

    Attributes:
        machine: name of the machine it runs on.
        address: its IP address, for the other nodes.
        claim: the connection of this client to it; None before it is claimed.
    """

    machine: str
    address: str
    claim: Claim | None


C = TypeVar("C", bound=Claimed)


class ClaimedHost(Generic[C]):
    """The machine of a job or pod, as the host of one node. It is known once `prepare` has run.

    Args:
        start: starts the node on a host's job or pod.

    Attributes:
        claimed: the job or pod; set by `prepare`.
        process: its runner, once it is a node.
    """

    def __init__(self, start: Callable[[ClaimedHost[C], Launch], RunnerNode], claimed: C | None = None) -> None:
        self._start, self.claimed = start, claimed
        self.process: ClaimedProcess | None = None

    @property
    def name(self) -> str:
        """The machine's name in the cluster."""
        return self._known.machine

    @property
    def address(self) -> str:
        """Its IP address, for the other nodes."""
        return self._known.address

    def claim_port(self) -> int:
        """Return a port there on which nothing was listening when the program was claimed."""
        claim = self._known.claim
        assert claim
        return claim.free_port

    def start(self, launch: Launch) -> RunnerNode:
        """Turn the host's program into the node.

        Raises:
            ProviderError: the program has ended.
        """
        return self._start(self, launch)

    @property
    def _known(self) -> C:
        assert self.claimed
        return self.claimed


def identities(provider: str, pool: str, count: int) -> tuple[list[Identity], list[Identity]]:
    """Return the client's identity towards each of `count` waiting programs, and each program's, in the same order.

    The client has one certificate, and each program its own, so that no program can impersonate another.

    Args:
        provider: name of the provider's class, for error messages.
        pool: identifier of the pool.
        count: number of programs.

    Raises:
        ConfigError: the package cryptography is not installed.
    """

    def pair(name: str) -> tuple[str, str]:
        return new_certificate(f"skyward {pool} {name}", user=f"sky.{provider}", extra=provider.lower())

    client, client_key = pair("client")
    theirs = [Identity(*pair(f"task {number}"), peer=client) for number in range(1, count + 1)]
    return [Identity(client, client_key, peer=each.certificate) for each in theirs], theirs


def new_certificate(name: str, *, user: str, extra: str) -> tuple[str, str]:
    """Create a self-signed certificate; return it and its private key, both in PEM.

    Args:
        name: its common name.
        user: what needs the certificate, for the error message.
        extra: skyward's extra that installs the library.

    Raises:
        ConfigError: the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"{user} creates certificates for the connections to its nodes, which needs the package cryptography: "
            f"`pip install 'skyward[{extra}]'`."
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def dial_program(address: str, port: int, connection: SshConnection | None) -> socket.socket:
    """Return a socket connected to a program that listens for its client, directly or through an SSH connection.

    Raises:
        OSError: nothing is listening there, or it cannot be reached.
    """
    if connection is None:
        sock = socket.create_connection((address, port), timeout=DIAL_S)
        tune(sock)
        keep_alive(sock)
        return sock
    host = f"[{address}]" if ":" in address else address
    try:
        sock = connection.dial(f"{host}:{port}")
    except (ProviderError, WireError) as error:
        raise ConnectionError(str(error)) from error
    sock.settimeout(DIAL_S)
    return sock


def claim(sock: socket.socket, context: ssl.SSLContext, name: str) -> Claim | None:
    """Claim the program at the other end of a socket; return None if it does not answer yet.

    Args:
        sock: socket to the program; closed if the program cannot be claimed.
        context: TLS context with this client's identity towards it.
        name: name of the thread that serves the connection.
    """
    try:
        tls, answer = _ask(sock, context, CLAIM)
    except OSError:  # also where another program listens, which has no certificate of this pool
        return None
    try:
        greeting = json.loads(answer)
    except ValueError:  # it has been claimed already
        tls.close()
        return None
    shown = end_point(tls.getpeercert(binary_form=True) or b"")
    return Claim(plain_end(tls, name), shown, int(greeting["port"]))


def open_through(
    dial: Callable[[], socket.socket], context: ssl.SSLContext, address: str, *, where: str, name: str
) -> socket.socket:
    """Return a socket that leads, encrypted, to an address that a node's runner has announced.

    Args:
        dial: opens a socket to the node's program.
        context: TLS context with this client's identity towards it.
        address: the announced address.
        where: description of the address for error messages.
        name: name of the thread that serves the connection.

    Raises:
        WireError: nothing is listening there any more.
    """
    try:
        tls, answer = _ask(dial(), context, f"{OPEN} {address}")
    except OSError as error:
        raise WireError(f"{where} cannot be reached: {error}.") from error
    if answer != "ok":
        tls.close()
        raise WireError(f"{where} cannot be reached: {answer or 'it has ended.'}")
    return plain_end(tls, name)


def end(session: socket.socket) -> None:
    """Tell a claimed program to end at once."""
    with suppress(OSError):  # it has ended already
        session.sendall(f"{json.dumps({'do': STOP})}\n".encode())
        session.shutdown(socket.SHUT_WR)


class ClaimedProcess(ABC):
    """A runner in a claimed program.

    Args:
        launch: the node to start.
        claim: the claimed program.
        title: a name for messages, such as "task 1f2e on stand1".

    Raises:
        ProviderError: the program has ended.
    """

    def __init__(self, launch: Launch, claim: Claim, title: str) -> None:
        self._session, self.channel, self.title = claim.session, claim.channel, title
        self._code: int | None = None
        self._ended = threading.Event()
        order = {"do": START, **launch.order}
        try:
            self._session.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} cannot be started: its {title} has ended ({error})."
            ) from error

    @abstractmethod
    def dial(self, address: str) -> socket.socket:
        """Return an encrypted socket to an address that the runner announced."""

    @abstractmethod
    def how_lost(self) -> Exit:
        """Return what is known about the end of a program that has not reported its exit status."""

    def how_exited(self, code: int) -> Exit:
        """Return how it ended, from the exit status it reported."""
        return exit_of(code)

    def is_unreachable(self) -> bool:
        """Return whether the connection to it is lost, so that waiting for an answer is useless."""
        return False

    @property
    def is_lost(self) -> bool:
        """Whether it has ended without reporting an exit status, or has not ended."""
        return self._code is None

    def output(self) -> Iterator[bytes]:
        """Yield the runner's output; its exit status arrives last."""
        try:
            yield from self._messages()
        finally:
            self._ended.set()

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the runner ended, None if it still runs after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            return None
        return self.how_lost() if self._code is None else self.how_exited(self._code)

    def end(self) -> None:
        """End the runner at once."""
        end(self._session)
        self._ended.wait(0 if self.is_unreachable() else _END_S)
        with suppress(OSError):  # it has ended already
            self._session.shutdown(socket.SHUT_RDWR)
        self._ended.wait(_END_S)
        self._session.close()

    def _messages(self) -> Iterator[bytes]:
        stream = self._session.makefile("rb")
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            kind, size = HEADER.unpack(header)
            data = stream.read(size)
            if kind == EXIT:
                self._code = json.loads(data)["code"]
            else:
                yield data


def _ask(sock: socket.socket, context: ssl.SSLContext, line: str) -> tuple[ssl.SSLSocket, str]:
    """Encrypt a connection to a program and send its first line; return the connection and the program's answer.

    The answer is read byte by byte, since the connection may carry something else behind it.
    """
    try:
        tls = context.wrap_socket(sock)
    except OSError:
        sock.close()
        raise
    try:
        tls.sendall(f"{line}\n".encode())
        said = b""
        while not said.endswith(b"\n") and len(said) < _LINE_BYTES and (data := tls.recv(1)):
            said += data
    except OSError:
        tls.close()
        raise
    return tls, said.decode(errors="replace").strip()
