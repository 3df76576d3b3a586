"""TLS 1.3 for connections that cross a network: each side knows the other's one certificate and trusts no other.

What comes out is an ordinary socket again (`splice`), so that frames and handshake are the same as everywhere.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from dataclasses import dataclass, field

from skyward.system import select, socket, threading

_CHUNK = 1 << 18
_READ = select.POLLIN | select.POLLHUP | select.POLLERR
# what a socket raises that can do nothing at the moment
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Identity:
    """One side of a pool's connections: its own certificate with its private key, and the other side's certificate.

    Attributes:
        certificate: PEM.
        private_key: PEM.
        peer: PEM; the one certificate that the other side may show.
    """

    certificate: str
    private_key: str = field(repr=False)
    peer: str

    @property
    def end_point(self) -> bytes:
        """What connections to this side are named by inside them."""
        return end_point(ssl.PEM_cert_to_DER_cert(self.certificate))

    def context(self, *, server: bool) -> ssl.SSLContext:
        """What TLS sockets of this side are made with.

        Names are not compared: a certificate is known as a whole, whatever address it is shown at.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if server:
            context.num_tickets = 0  # nobody resumes
        context.load_verify_locations(cadata=self.peer)
        # the ssl module takes a key from a file only; these have no name that could be left when this process is killed
        with tempfile.TemporaryFile() as certificate, tempfile.TemporaryFile() as key:
            for file, text in ((certificate, self.certificate), (key, self.private_key)):
                file.write(text.encode())
                file.seek(0)
            context.load_cert_chain(f"/dev/fd/{certificate.fileno()}", f"/dev/fd/{key.fileno()}")
        return context


def end_point(certificate: bytes) -> bytes:
    """What names a connection to whoever shows this certificate (DER) inside it: `tls-server-end-point` of RFC 5929."""
    return hashlib.sha256(certificate).digest()


def plain_end(tls: ssl.SSLSocket, name: str) -> socket.socket:
    """A plain socket that leads through a TLS connection, which a thread of that name serves and closes at its end."""
    near, far = socket.socketpair()
    threading.Thread(target=splice, args=(far, tls), name=name, daemon=True).start()
    return near


def splice(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Pass bytes on in both directions until one side ends; what that one has said is delivered, and both are closed.

    One thread serves both directions, because a TLS socket is not safe in the hands of two in all supported Pythons.
    """
    plain.setblocking(False)
    tls.setblocking(False)
    out, back = _Flow(plain, tls), _Flow(tls, plain)
    try:
        while not (out.done or back.done):
            if not (out.step() | back.step()):
                poll = select.poll()
                for sock, events in ((plain, out.waits_for | back.blocks_on), (tls, back.waits_for | out.blocks_on)):
                    if events:  # one that nothing is wanted of would wake us again and again once it has hung up
                        poll.register(sock, events)
                poll.poll()
    finally:
        _hang_up(tls)
        for each in (tls, plain):
            each.close()


class _Flow:
    """One direction: reads when all it had is written."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source, self._target = source, target
        self._space = memoryview(bytearray(_CHUNK))
        self._left = self._space[:0]  # read, and not written yet
        self._ended = False
        self._deaf = False  # nobody reads at the other end; what comes for it is read and dropped

    @property
    def done(self) -> bool:
        """Whether the source has ended, and all that it has said is written."""
        return self._ended and not self._left

    @property
    def waits_for(self) -> int:
        """The events of the source that matter now."""
        return 0 if self._left or self._ended else _READ

    @property
    def blocks_on(self) -> int:
        """Those of the target."""
        return select.POLLOUT if self._left else 0

    def step(self) -> bool:
        """Do what can be done without waiting; whether that was anything."""
        return self._write() if self._left else self._read()

    def _read(self) -> bool:
        if self._ended:
            return False
        try:
            count = self._source.recv_into(self._space)
        except _LATER:
            return False
        except OSError:  # it broke, or was cut off without TLS's goodbye: the frames inside know their lengths
            count = 0
        self._ended = count == 0
        self._left = self._space[:count]
        return True

    def _write(self) -> bool:
        try:
            count = len(self._left) if self._deaf else self._target.send(self._left)
        except _LATER:
            return False
        except OSError:
            self._deaf, count = True, len(self._left)
        self._left = self._left[count:]
        return True


def _hang_up(tls: ssl.SSLSocket) -> None:
    """Say TLS's goodbye, if that takes no waiting."""
    try:
        tls.unwrap()
    except (OSError, ValueError):
        pass  # the other side is gone, or has not said its own yet
