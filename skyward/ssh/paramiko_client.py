"""The SSH connection by paramiko, where OpenSSH's client is not installed.

Host keys are checked as OpenSSH does with StrictHostKeyChecking=yes. What the user's SSH configuration says of
addresses, users, keys, jump hosts and files of host keys is honoured; an option that would restrict what is trusted and
that paramiko does not know is an error.
"""

from __future__ import annotations

import logging
import shlex
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import paramiko
from paramiko.packet import Packetizer
from paramiko.ssh_exception import AuthenticationException, SSHException

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh.connection import ALIVE_S, CONNECT_S, END_S, SILENT, SshConnection
from skyward.ssh.paramiko_trust import ConnectError, Hop, check_host_key, known_types, route
from skyward.system import socket, threading, time

_CHUNK = 2**15  # a packet of SSH holds as much
_WINDOW = 2**24  # bytes under way in one forward
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its warnings go to the terminal


class _Packets(Packetizer):
    """Packets of a connection, and when the last one came."""

    heard = float("inf")

    def read_message(self) -> Any:
        found = super().read_message()
        self.heard = time.monotonic()
        return found


def _open_unix_channel(transport: Any, path: str) -> paramiko.Channel:
    """A channel to a socket of the machine: `Transport.open_channel` knows none of this kind.

    https://github.com/paramiko/paramiko/issues/544
    """
    message, opened = paramiko.Message(), threading.Event()
    window, packet = transport.default_window_size, transport.default_max_packet_size
    with transport.lock:
        number = transport._next_channel()
        message.add_byte(paramiko.common.cMSG_CHANNEL_OPEN)
        message.add_string("direct-streamlocal@openssh.com")
        for value in (number, window, packet):
            message.add_int(value)
        message.add_string(path)
        message.add_string("")  # two fields that OpenSSH has reserved
        message.add_int(0)
        channel: Any = paramiko.Channel(number)
        transport._channels.put(number, channel)
        transport.channel_events[number] = opened
        transport.channels_seen[number] = True
        channel._set_transport(transport)
        channel._set_window(window, packet)
    transport._send_user_message(message)
    until = time.monotonic() + CONNECT_S
    # A transport that ends forgets the channels that it knows, and tells nobody of one that is added afterwards.
    while transport.active and not opened.wait(0.1) and time.monotonic() < until:
        pass
    if not (opened.is_set() and transport.active) or transport._channels.get(number) is None:
        raise transport.get_exception() or SSHException(f"The machine did not forward to {path}.")
    opened_channel: paramiko.Channel = channel
    return opened_channel


class ParamikoConnection(SshConnection):
    """A connection by threads of this process.

    Raises:
        ProviderError: the SSH configuration cannot be read, or says what paramiko cannot do.
    """

    def __init__(self, host: SshHost, folder: Path, *words: str) -> None:
        super().__init__(host, folder)
        self._route = route(host)
        self._transports: list[paramiko.Transport] = []
        self._session: paramiko.Channel | None = None
        self._opened = threading.Event()
        self._killed = False
        self.at_end(self._opened.set)
        threading.Thread(target=self._run, args=(shlex.join(words),), name=f"ssh-{host.name}", daemon=True).start()

    @property
    def through(self) -> SshHost:
        raise ProviderError(
            f"Builds on {self.host.name}, and machines that sky.AWS rents, take OpenSSH's client, which is not "
            "installed here (Debian: openssh-client). Install it, or build with build='local'."
        )

    def send(self, line: str) -> None:
        self._opened.wait()
        with self._lock, suppress(OSError, SSHException):
            if self._session is not None:
                self._session.sendall(f"{line}\n".encode())

    def forward(self, remote: str) -> Path:
        self._opened.wait()
        if self.ended.is_set():
            raise ProviderError(f"{remote} on {self.host.name} cannot be reached through SSH: {self.problem}")
        local = self._next_forward()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(local))
        local.chmod(0o600)
        listener.listen()
        name = f"ssh-{self.host.name}-forward"
        threading.Thread(target=self._accept, args=(listener, remote), name=name, daemon=True).start()
        self.at_end(partial(_hang_up, listener))
        return local

    def kill(self) -> None:
        self._killed = True
        for transport in reversed(self._transports):
            transport.close()
        self.ended.wait(END_S)

    def _end_input(self) -> None:
        with suppress(OSError, SSHException):
            if self._session is not None:
                self._session.shutdown_write()

    # the session --------------------------------------------------------------------------------------------------

    def _run(self, command: str) -> None:
        said = ""
        try:
            session = self._connect().open_session(timeout=CONNECT_S)
            session.exec_command(command)
            self._session = session
            self._opened.set()
            said = self._read(session)
        except ConnectError as error:
            said = str(error)
        except (SSHException, EOFError, OSError) as error:
            said = f"Connection closed: {str(error) or 'the machine ended it'}"
        for transport in reversed(self._transports):
            transport.close()
        self._end(said)

    def _connect(self) -> paramiko.Transport:
        """Connect to each machine on the way through the one before, and prove who is there and who we are."""
        line: socket.socket | paramiko.Channel
        for number, hop in enumerate(self._route):
            if self._killed:
                raise SSHException("it was not wanted any more")
            if number:
                line = self._transports[-1].open_channel(
                    "direct-tcpip", hop.address, ("127.0.0.1", 0), timeout=CONNECT_S
                )
            else:
                line = _dialled(hop)
            transport = paramiko.Transport(line, default_window_size=_WINDOW, packetizer_class=_Packets)
            self._transports.append(transport)
            _restrict(transport, hop)
            transport.start_client(timeout=CONNECT_S)
            check_host_key(hop, transport.get_remote_server_key())
            _log_in(transport, hop)
        threading.Thread(target=self._ask_for_life, name=f"ssh-{self.host.name}-alive", daemon=True).start()
        return self._transports[-1]

    def _read(self, session: paramiko.Channel) -> str:
        """Read lines to the end of the session; why it ended."""
        errors, rest = b"", b""
        packets = self._transports[-1].packetizer
        assert isinstance(packets, _Packets)
        session.settimeout(ALIVE_S)
        while True:
            try:
                data = session.recv(_CHUNK)
            except TimeoutError:
                if time.monotonic() - packets.heard > ALIVE_S * SILENT:
                    return f"Timeout, server {self.host.name} not responding."
                continue
            finally:
                while session.recv_stderr_ready():
                    errors += session.recv_stderr(_CHUNK)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._hear(line)
        if rest:
            self._hear(rest)
        session.status_event.wait(ALIVE_S)  # sshd tells the exit status after the end of the output
        while session.recv_stderr_ready():
            errors += session.recv_stderr(_CHUNK)
        lost = (
            ""
            if session.exit_status_ready() and session.exit_status >= 0
            else f"Connection to {self.host.name} closed."
        )
        return f"{errors.decode(errors='replace')}\n{lost}".strip()

    def _ask_for_life(self) -> None:
        with suppress(SSHException, EOFError, OSError):
            while not self.ended.wait(ALIVE_S):
                self._transports[-1].global_request("keepalive@openssh.com", wait=True)

    # forwards -----------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, remote: str) -> None:
        with listener, suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near, remote), name="ssh-forward", daemon=True).start()

    def _carry(self, near: socket.socket, remote: str) -> None:
        """Carry bytes both ways between a socket here and one there, until both sides have ended."""
        transport = self._transports[-1]
        with closing(near), suppress(SSHException, EOFError, OSError):
            if remote.startswith("/"):
                far = _open_unix_channel(transport, remote)
            else:
                name, _, port = remote.rpartition(":")
                far = transport.open_channel("direct-tcpip", (name, int(port)), ("127.0.0.1", 0), timeout=CONNECT_S)
            with closing(far):
                up = threading.Thread(target=_copy, args=(near, far), name="ssh-forward-up", daemon=True)
                up.start()
                _copy(far, near)
                up.join()


def _copy(source: Any, target: Any) -> None:
    """Copy bytes from a socket or channel to another, and then its end; where that breaks, end both."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except (SSHException, EOFError, OSError):
        for end in (source, target):
            with suppress(SSHException, EOFError, OSError):
                end.shutdown(socket.SHUT_RDWR)


def _hang_up(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread that accepts


def _dialled(hop: Hop) -> socket.socket:
    host, port = hop.address
    try:
        return socket.create_connection((host, port), CONNECT_S)
    except socket.gaierror as error:
        raise ConnectError(f"Could not resolve hostname {host}: {error.strerror}") from error
    except OSError as error:
        why = error.strerror or "Operation timed out"
        raise ConnectError(f"connect to host {host} port {port}: {why}") from error


def _restrict(transport: paramiko.Transport, hop: Hop) -> None:
    """Leave out what OpenSSH has not offered by default for years, and ask for a host key that is known."""
    options = transport.get_security_options()
    options.ciphers = [each for each in _CIPHERS if each in options.ciphers]
    options.digests = [each for each in options.digests if "sha2" in each]
    options.kex = [each for each in options.kex if not each.endswith("sha1")]
    known = known_types(hop)
    options.key_types = sorted(options.key_types, key=lambda kind: kind not in known)


def _log_in(transport: paramiko.Transport, hop: Hop) -> None:
    with closing(hop.identities()) as keys:
        for key in keys:
            with suppress(AuthenticationException):
                transport.auth_publickey(hop.user, key)
            if transport.is_authenticated():
                return
            if not transport.is_active():
                raise ConnectError(f"{hop.user}@{hop.name}: Too many authentication failures")
    raise ConnectError(f"{hop.user}@{hop.name}: Permission denied (publickey).")
