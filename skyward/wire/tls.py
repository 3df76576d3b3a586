"""TLS 1.3 for connections that cross a network: each side knows the other's one certificate and trusts no other.

`splice` turns it into an ordinary socket, so that frames and handshake are the same as elsewhere.
"""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from dataclasses import dataclass, field

from skyward.system import select, socket, threading

_CHUNK = 1 << 18
_READ = select.POLLIN | select.POLLHUP | select.POLLERR
# raised by a socket that would block
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Identity:
    """One side of a pool's connections: its certificate with its private key, and the other side's certificate.

    Attributes:
        certificate: PEM.
        private_key: PEM.
        peer: PEM; the only certificate accepted from the other side.
    """

    certificate: str
    private_key: str = field(repr=False)
    peer: str

    @property
    def end_point(self) -> bytes:
        """The identifier of this side's connections, used inside them."""
        return end_point(ssl.PEM_cert_to_DER_cert(self.certificate))

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return the context for TLS sockets of this side.

        Host names are not checked: a certificate is recognised as a whole, whatever the address.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if server:
            context.num_tickets = 0  # no session is resumed
        context.load_verify_locations(cadata=self.peer)
        # the ssl module reads keys from files only; these have no names, so none is left if this process is killed
        with tempfile.TemporaryFile() as certificate, tempfile.TemporaryFile() as key:
            for file, text in ((certificate, self.certificate), (key, self.private_key)):
                file.write(text.encode())
                file.seek(0)
            context.load_cert_chain(f"/dev/fd/{certificate.fileno()}", f"/dev/fd/{key.fileno()}")
        return context


def end_point(certificate: bytes) -> bytes:
    """Return `tls-server-end-point` of RFC 5929 for this certificate (DER): it identifies a connection inside it."""
    return hashlib.sha256(certificate).digest()


def plain_end(tls: ssl.SSLSocket, name: str) -> socket.socket:
    """Return a plain socket connected to a TLS connection by a thread of that name, which finally closes the latter."""
    near, far = socket.socketpair()
    threading.Thread(target=splice, args=(far, tls), name=name, daemon=True).start()
    return near


def splice(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Pass bytes on in both directions until one side ends; deliver what it has sent, and close both.

    One thread serves both directions, because not all supported Pythons allow two threads to use a TLS socket.
    """
    plain.setblocking(False)
    tls.setblocking(False)
    out, back = _Flow(plain, tls), _Flow(tls, plain)
    try:
        while not (out.done or back.done):
            if not (out.step() | back.step()):
                poll = select.poll()
                for sock, events in ((plain, out.waits_for | back.blocks_on), (tls, back.waits_for | out.blocks_on)):
                    if events:  # an idle socket that has hung up would wake the poll again and again
                        poll.register(sock, events)
                poll.poll()
    finally:
        _hang_up(tls)
        for each in (tls, plain):
            each.close()


class _Flow:
    """One direction: it reads when everything read before has been written."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source, self._target = source, target
        self._space = memoryview(bytearray(_CHUNK))
        self._left = self._space[:0]  # read, but not written yet
        self._ended = False
        self._deaf = False  # the target has closed; data for it is read and dropped

    @property
    def done(self) -> bool:
        """Whether the source has ended and all of its data has been written."""
        return self._ended and not self._left

    @property
    def waits_for(self) -> int:
        """The events of the source to wait for."""
        return 0 if self._left or self._ended else _READ

    @property
    def blocks_on(self) -> int:
        """The events of the target to wait for."""
        return select.POLLOUT if self._left else 0

    def step(self) -> bool:
        """Do what is possible without blocking; return whether that was anything."""
        return self._write() if self._left else self._read()

    def _read(self) -> bool:
        if self._ended:
            return False
        try:
            count = self._source.recv_into(self._space)
        except _LATER:
            return False
        except OSError:  # broken or closed without TLS's close_notify: frames have lengths, so a truncation is noticed
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
    """Send TLS's close_notify, if possible without blocking."""
    try:
        tls.unwrap()
    except (OSError, ValueError):
        pass  # the other side has closed, or has not sent its own yet
