"""Nodes whose program waits for its client (`skyward.runner.entry.claimed`): claimed, started, reached, ended.

Tasks of a swarm, jobs of Slurm and pods of Kubernetes are such nodes. They differ in how a socket leads there, and in
who knows how one has ended. Client and program know each other by certificates that the client makes for one pool:
self-signed, known as a whole to the other side, and never reused.
"""

from __future__ import annotations

import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

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
_BACK = timedelta(days=1)  # clocks differ
_VALID = timedelta(days=3650)  # the pool may last; the keys are deleted with it


@dataclass(frozen=True, slots=True)
class Claim:
    """A program that waits, and this client's connection to it.

    Attributes:
        session: the connection by which this client has claimed it.
        channel: what names its TLS certificate, for the handshakes inside.
        free_port: a port on its machine that nobody uses.
        busy: whether another connection had claimed it before; then this one may only end it.
    """

    session: socket.socket = field(repr=False)
    channel: bytes
    free_port: int
    busy: bool


class Claimed(Protocol):
    """A task, job or pod of a pool, whose program waits to become a node or is one."""

    @property
    def machine(self) -> str:
        """Name of the machine that it is on."""

    @property
    def address(self) -> str:
        """Its IP address, for the other nodes."""

    @property
    def claim(self) -> Claim | None:
        """The connection of this client to it; None before it is claimed."""


class ClaimingAllocation(Protocol):
    """What `ClaimedHost` needs of an allocation."""

    def start(self, host: ClaimedHost[Any], launch: Launch) -> RunnerNode:
        """Make what a host stands for the node."""


C = TypeVar("C", bound=Claimed)


class ClaimedHost(Generic[C]):
    """The machine that a task, job or pod is on, as the host of one node. Which one is known after `prepare`.

    Attributes:
        allocation: the pool's.
        claimed: the task, job or pod, after `prepare`.
        process: its runner, once it is a node.
    """

    def __init__(self, allocation: ClaimingAllocation, claimed: C | None = None) -> None:
        self.allocation, self.claimed = allocation, claimed
        self.process: ClaimedProcess | None = None

    @property
    def name(self) -> str:
        """The machine's name, as the swarm or the cluster has it."""
        return self._known.machine

    @property
    def address(self) -> str:
        """Its IP address, for the other nodes."""
        return self._known.address

    def claim_port(self) -> int:
        """A port there on which nobody listened when its program was claimed."""
        claim = self._known.claim
        assert claim
        return claim.free_port

    def start(self, launch: Launch) -> RunnerNode:
        """Make its program the node.

        Raises:
            ProviderError: it has ended.
        """
        return self.allocation.start(self, launch)

    @property
    def _known(self) -> C:
        assert self.claimed
        return self.claimed


def identities(provider: str, pool: str, count: int) -> tuple[list[Identity], list[Identity]]:
    """The client's identity towards each of so many programs that wait for it, and each program's, in the same order.

    The client has one certificate, and each program its own, so that one cannot pose as another.

    Args:
        provider: name of the provider's class, for errors.
        pool: identifier of the pool.
        count: of the programs.

    Raises:
        ConfigError: the package cryptography is not installed.
    """

    def pair(name: str) -> tuple[str, str]:
        return new_certificate(f"skyward {pool} {name}", user=f"sky.{provider}", extra=provider.lower())

    client, client_key = pair("client")
    theirs = [Identity(*pair(f"task {number}"), peer=client) for number in range(1, count + 1)]
    return [Identity(client, client_key, peer=each.certificate) for each in theirs], theirs


def new_certificate(name: str, *, user: str, extra: str) -> tuple[str, str]:
    """A self-signed certificate, and its private key; both PEM.

    Args:
        name: its common name.
        user: what makes it, for the error.
        extra: the extra of skyward that brings the library.

    Raises:
        ConfigError: the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            f"{user} makes certificates for the connections to its nodes, which takes the package cryptography: "
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
    """A connected socket to a program that listens for its client: directly, or through an SSH connection.

    Raises:
        OSError: nothing listens there, or it cannot be reached.
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
    """Claim the program that a socket leads to; None if it does not answer yet.

    Args:
        sock: leads to it; closed if it cannot be claimed.
        context: this client's identity towards it.
        name: of the thread that serves the connection.

    Raises:
        ssl.SSLCertVerificationError: another program listens there.
    """
    try:
        tls = context.wrap_socket(sock)
    except OSError as error:
        sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise
        return None
    try:
        tls.sendall(f"{CLAIM}\n".encode())
        greeting = json.loads(_line(tls))
    except (OSError, ValueError):
        tls.close()
        return None
    shown = end_point(tls.getpeercert(binary_form=True) or b"")
    return Claim(plain_end(tls, name), shown, int(greeting["port"]), bool(greeting["busy"]))


def claim_at(
    dial: Callable[[int], socket.socket], ports: Iterable[int], context: ssl.SSLContext, name: str
) -> tuple[Claim, int] | None:
    """Claim the program that listens at one of these ports, the first that is free; None if it does not answer yet."""
    for port in ports:
        try:
            found = claim(dial(port), context, name)
        except ssl.SSLCertVerificationError:
            continue  # another program has this port; ours took the next one
        except (OSError, ProviderError):
            return None
        return None if found is None else (found, port)
    return None


def open_through(
    dial: Callable[[], socket.socket], context: ssl.SSLContext, address: str, *, where: str, name: str
) -> socket.socket:
    """A socket that leads, encrypted, to an address that a node's runner has announced.

    Args:
        dial: gives a socket to the node's program.
        context: this client's identity towards it.
        address: what the runner has announced.
        where: the same in words, for errors.
        name: of the thread that serves the connection.

    Raises:
        WireError: nothing listens there any more.
    """
    sock = None
    try:
        sock = dial()
        tls = context.wrap_socket(sock)
        tls.sendall(f"{OPEN} {address}\n".encode())
        answer = _line(tls)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise WireError(f"{where} cannot be reached: {error}.") from error
    if answer != "ok":
        tls.close()
        raise WireError(f"{where} cannot be reached: {answer or 'it has ended.'}")
    return plain_end(tls, name)


def end(session: socket.socket, how: str) -> None:
    """Have a claimed program end at once, whatever it does: RESTART where another is to be started for it, or STOP."""
    with suppress(OSError):  # it has ended
        session.sendall(f"{json.dumps({'do': how})}\n".encode())
        session.shutdown(socket.SHUT_WR)


class ClaimedProcess(ABC):
    """A runner in a program that was claimed.

    Args:
        launch: what it is to be.
        claim: the program.
        title: what it is, for messages, such as "task 1f2e on stand1".

    Attributes:
        ending: what it is told in the end.

    Raises:
        ProviderError: the program has ended.
    """

    ending: ClassVar[str] = STOP

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
        """A socket that leads, encrypted, to an address that the runner announced."""

    @abstractmethod
    def how_lost(self) -> Exit:
        """What is known of a program that has ended without telling how."""

    def how_exited(self, code: int) -> Exit:
        """How it ended, from the exit status that it has told."""
        return exit_of(code)

    def is_unreachable(self) -> bool:
        """Whether what leads there is gone, so that nobody need wait for its answer."""
        return False

    @property
    def is_lost(self) -> bool:
        """Whether it has not told its end, as one on a machine that is gone."""
        return self._code is None

    def output(self) -> Iterator[bytes]:
        """What the runner prints; its exit status comes last."""
        try:
            yield from self._messages()
        finally:
            self._ended.set()

    def wait(self, timeout_s: float) -> Exit | None:
        """How the runner ended, None if it still runs after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            return None
        return self.how_lost() if self._code is None else self.how_exited(self._code)

    def end(self) -> None:
        """End the runner at once."""
        end(self._session, self.ending)
        self._ended.wait(0 if self.is_unreachable() else _END_S)
        with suppress(OSError):  # it has ended
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


def _line(tls: ssl.SSLSocket) -> str:
    """The first line of a program's answer; it says no more before it is answered."""
    said = b""
    while not said.endswith(b"\n") and len(said) < _LINE_BYTES:
        data = tls.recv(1)
        if not data:
            break
        said += data
    return said.decode(errors="replace").strip()
