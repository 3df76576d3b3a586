"""SSH connections by paramiko, for systems without OpenSSH's client.

Host keys are checked as by OpenSSH with StrictHostKeyChecking=yes. Addresses, users, keys, jump hosts and known hosts
of the user's SSH configuration are honoured; an option that would restrict what is trusted, and that paramiko does not
support, is an error.
"""

from __future__ import annotations

import getpass
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, cast

import paramiko
from paramiko.packet import Packetizer
from paramiko.ssh_exception import SSHException

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh.connection import ALIVE_S, CONNECT_S, END_S, MOST_JUMPS, SILENT, SshConnection, last_jump
from skyward.ssh.forward import Forward
from skyward.system import socket, threading, time

_CHUNK = 2**15  # the size of an SSH packet
_WINDOW = 2**24  # bytes in flight per forward
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
CONFIGURATIONS = ("~/.ssh/config", "/etc/ssh/ssh_config")
_KNOWN_HOSTS = ("~/.ssh/known_hosts ~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
_IDENTITIES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_UNKNOWN = ("revokedhostkeys", "proxycommand")  # ignoring these, a machine could be trusted or reached that must not be
_BROKEN = (SSHException, EOFError, OSError)
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # otherwise its warnings appear in the terminal


class _Packets(Packetizer):
    """Reads the packets of a connection, and records when the last one arrived."""

    heard = float("inf")

    def read_message(self) -> Any:
        found = super().read_message()
        self.heard = time.monotonic()
        return found


def _open_unix_channel(transport: Any, path: str) -> paramiko.Channel:
    """Open a channel to a unix socket of the machine, a kind that `Transport.open_channel` does not support.

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
        message.add_string("")  # two fields reserved by OpenSSH
        message.add_int(0)
        channel: Any = paramiko.Channel(number)
        transport._channels.put(number, channel)
        transport.channel_events[number] = opened
        transport.channels_seen[number] = True
        channel._set_transport(transport)
        channel._set_window(window, packet)
    transport._send_user_message(message)
    until = time.monotonic() + CONNECT_S
    # A transport that ends forgets its channels, and does not notify those added afterwards.
    while transport.active and not opened.wait(0.1) and time.monotonic() < until:
        pass
    if not (opened.is_set() and transport.active) or transport._channels.get(number) is None:
        raise transport.get_exception() or SSHException(f"The machine did not forward to {path}.")
    opened_channel: paramiko.Channel = channel
    return opened_channel


class ParamikoConnection(SshConnection):
    """A connection served by threads of this process.

    Raises:
        ProviderError: the SSH configuration cannot be read, or requires something that paramiko cannot do.
    """

    def __init__(self, host: SshHost, folder: Path, *words: str) -> None:
        super().__init__(host, folder)
        self._route = route(host)
        self._clients: list[paramiko.SSHClient] = []
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
        self.at_end(Forward(listener, partial(self._dial, remote), _BROKEN).close)
        return local

    def kill(self) -> None:
        self._killed = True
        for client in reversed(self._clients):
            client.close()
        self.ended.wait(END_S)

    def _end_input(self) -> None:
        with suppress(OSError, SSHException):
            if self._session is not None:
                self._session.shutdown_write()

    # the session --------------------------------------------------------------------------------------------------

    def _run(self, command: str) -> None:
        said = ""
        try:
            self._connect()
            session = self._transport.open_session(timeout=CONNECT_S)
            session.exec_command(command)
            self._session = session
            self._opened.set()
            said = self._read(session)
        except ConnectError as error:
            said = str(error)
        except _BROKEN as error:
            said = f"Connection closed: {str(error) or 'the machine ended it'}"
        for client in reversed(self._clients):
            client.close()
        self._end(said)

    def _connect(self) -> None:
        """Connect to each machine of the route through the previous one, check its host key and log in."""
        for number, hop in enumerate(self._route):
            if self._killed:
                raise SSHException("it was no longer needed")
            line: Any
            if number:
                line = self._transport.open_channel("direct-tcpip", hop.address, ("", 0), timeout=CONNECT_S)
            else:
                line = socket.create_connection(hop.address, CONNECT_S)
            client, policy = paramiko.SSHClient(), _Policy(hop)
            self._clients.append(client)
            client.set_missing_host_key_policy(policy)
            try:
                client.connect(
                    *hop.address,
                    sock=line,
                    username=hop.user,
                    key_filename=cast(Any, hop.keys),  # a list, which its annotations lack
                    look_for_keys=False,
                    allow_agent=hop.settings.get("identityagent", "SSH_AUTH_SOCK") == "SSH_AUTH_SOCK",
                    timeout=CONNECT_S,
                    banner_timeout=CONNECT_S,
                    auth_timeout=CONNECT_S,
                    transport_factory=partial(_transport, hop),
                )
            except SSHException as error:
                if policy.is_trusted:
                    raise ConnectError(f"{hop.user}@{hop.name}: Permission denied (publickey).") from error
                raise
        threading.Thread(target=self._ask_for_life, name=f"ssh-{self.host.name}-alive", daemon=True).start()

    @property
    def _transport(self) -> paramiko.Transport:
        """The connection to the last machine that has been reached."""
        if (transport := self._clients[-1].get_transport()) is None:
            raise SSHException("The connection has ended.")
        return transport

    def _read(self, session: paramiko.Channel) -> str:
        """Read lines until the session ends; return the reason."""
        errors, rest = b"", b""
        packets = self._transport.packetizer
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
        session.status_event.wait(ALIVE_S)  # sshd sends the exit status after the end of the output
        while session.recv_stderr_ready():
            errors += session.recv_stderr(_CHUNK)
        lost = (
            ""
            if session.exit_status_ready() and session.exit_status >= 0
            else f"Connection to {self.host.name} closed."
        )
        return f"{errors.decode(errors='replace')}\n{lost}".strip()

    def _ask_for_life(self) -> None:
        with suppress(*_BROKEN):
            while not self.ended.wait(ALIVE_S):
                self._transport.global_request("keepalive@openssh.com", wait=True)

    def _dial(self, remote: str) -> paramiko.Channel:
        """Open a channel to a socket of the machine."""
        if remote.startswith("/"):
            return _open_unix_channel(self._transport, remote)
        name, _, port = remote.rpartition(":")
        return self._transport.open_channel("direct-tcpip", (name, int(port)), ("", 0), timeout=CONNECT_S)


class _Policy(paramiko.MissingHostKeyPolicy):
    """Checks the host key of a machine, after which keys of the user may be shown to it."""

    def __init__(self, hop: Hop) -> None:
        self._hop, self.is_trusted = hop, False

    def missing_host_key(self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey) -> None:
        check_host_key(self._hop, key)
        self.is_trusted = True


def _transport(hop: Hop, line: Any, **_: Any) -> paramiko.Transport:
    """Return a transport without algorithms that OpenSSH has not offered by default for years.

    It prefers known types of host keys.
    """
    transport = paramiko.Transport(line, default_window_size=_WINDOW, packetizer_class=_Packets)
    options = transport.get_security_options()
    options.ciphers = [each for each in _CIPHERS if each in options.ciphers]
    options.digests = [each for each in options.digests if "sha2" in each]
    options.kex = [each for each in options.kex if not each.endswith("sha1")]
    known = known_types(hop)
    options.key_types = sorted(options.key_types, key=lambda kind: kind not in known)
    return transport


# hosts, keys and host keys, from the user's SSH configuration and its jump hosts -------------------------------------


class ConnectError(Exception):
    """Why a connection failed, in the wording of OpenSSH's client, which `SshHost.meaning` explains."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A machine on the route to a host, or that host.

    Attributes:
        host: the machine as it was specified.
        settings: its settings in the SSH configuration.
    """

    host: SshHost
    settings: Mapping[str, Any]

    @property
    def address(self) -> tuple[str, int]:
        """Its host name, which may be an address, and its port."""
        return str(self.settings["hostname"]), self.host.port or int(self.settings.get("port", 22))

    @property
    def user(self) -> str:
        """The user to log in as."""
        return self.host.user or str(self.settings.get("user") or getpass.getuser())

    @property
    def name(self) -> str:
        """Its name in known_hosts files."""
        host, port = self.address
        if alias := self.settings.get("hostkeyalias"):
            return str(alias).lower()
        return host.lower() if port == 22 else f"[{host.lower()}]:{port}"

    @property
    def known_hosts(self) -> list[Path]:
        """The files with host keys to trust."""
        if self.host.known_hosts is not None:
            return [Path(self.host.known_hosts)]
        names = zip(("userknownhostsfile", "globalknownhostsfile"), _KNOWN_HOSTS, strict=True)
        texts = [str(self.settings.get(name, default)) for name, default in names]
        return [Path(path).expanduser() for text in texts for path in shlex.split(text)]

    @property
    def keys(self) -> list[str]:
        """The files of the user's keys for it."""
        named = [self.host.key] if self.host.key else self.settings.get("identityfile", _IDENTITIES)
        files = [Path(file).expanduser() for file in named if file != "none"]
        return [str(file) for file in files if file.is_file()]


def route(host: SshHost, jumps: Sequence[str] | None = None, depth: int = 0) -> tuple[Hop, ...]:
    """Return the machines to connect to, each through the previous one; the last is the host itself.

    Args:
        host: the machine.
        jumps: the jump hosts before it; None for those of the configuration.
        depth: number of machines after it.

    Raises:
        ProviderError: the configuration cannot be read, requires something that paramiko cannot do, or has circular
            jumps.
    """
    hop = Hop(host, _settings(host))
    if jumps is None:
        named = str(hop.settings.get("proxyjump", "none"))
        jumps = [] if named.lower() == "none" else [each.strip() for each in named.split(",")]
    if not jumps:
        return (hop,)
    jump = replace(last_jump(host, jumps, depth), known_hosts=None if host.trusts_jumps else host.known_hosts)
    return (*route(jump, jumps[:-1] or None, depth + 1), hop)


def known_types(hop: Hop) -> AbstractSet[str]:
    """Return the algorithms of a machine's known host keys."""
    kinds = {kind for marker, kind, _ in _entries(hop) if not marker}
    return kinds | ({"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in kinds else set())


def check_host_key(hop: Hop, key: paramiko.PKey) -> None:
    """Raise ConnectError unless a machine's key is in its known_hosts files and not revoked there."""
    kind, text = key.get_name(), key.get_base64()
    entries = _entries(hop)
    if ("@revoked", kind, text) in entries:
        raise ConnectError(f"Host key verification failed: the key of {hop.name} is marked as revoked.")
    if ("", kind, text) in entries:
        return
    if any(known == kind and not marker for marker, known, _ in entries):
        raise ConnectError(f"Remote host identification has changed: {hop.name} has another key of type {kind}.")
    raise ConnectError(f"No {kind} host key is known for {hop.name} and you have requested strict checking.")


def _entries(hop: Hop) -> set[tuple[str, str, str]]:
    """Return a machine's entries in known_hosts files: marker ("" for none), type and key."""
    found = set()
    for path in hop.known_hosts:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) >= 3 and not words[0].startswith("#") and _matches(words[0], hop.name):
                found.add((marker, words[1], words[2]))
    return found


def _matches(patterns: str, name: str) -> bool:
    """Return whether a line of known_hosts matches a name: hashed, or a list with `*`, `?` and `!` for exclusion."""
    if patterns.startswith("|"):
        return patterns.startswith("|1|") and paramiko.HostKeys.hash_host(name, patterns) == patterns
    matched = [each for each in patterns.lower().split(",") if re.fullmatch(_regex(each.removeprefix("!")), name)]
    return bool(matched) and not any(each.startswith("!") for each in matched)


def _regex(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")


def _settings(host: SshHost) -> dict[str, Any]:
    text = "".join(_text(Path(path).expanduser()) for path in CONFIGURATIONS)
    try:
        settings = dict(paramiko.SSHConfig.from_text(text).lookup(host.host))
    except (SSHException, ValueError, KeyError, OSError, ImportError) as error:
        raise ProviderError(f"The SSH configuration cannot be read for {host.name}: {error}.") from error
    settings = {**settings, **({"user": host.user} if host.user else {})}
    if unknown := [name for name in _UNKNOWN if str(settings.get(name) or "none").lower() != "none"]:
        raise ProviderError(
            f"The SSH configuration has the option {unknown[0]} for {host.name}, which needs OpenSSH's client: install "
            "it (Debian: openssh-client)."
        )
    return settings


def _text(path: Path, depth: int = 0) -> str:
    """Return a configuration file's text with that of included files. Includes must precede its first Host or Match."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found, in_block = ["Host *"], False
    for line in lines:
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        in_block |= word.lower() in ("host", "match")
        if word.lower() != "include":
            found.append(line)
            continue
        if in_block or depth >= MOST_JUMPS:
            raise ProviderError(
                f"The SSH configuration {path} includes {rest.strip()} inside a Host or Match block, or in a circle, "
                "which needs OpenSSH's client: install it (Debian: openssh-client), or put the Include first."
            )
        folder = Path("/etc/ssh") if path.is_relative_to("/etc/ssh") else Path("~/.ssh").expanduser()
        for pattern in shlex.split(rest, comments=True):
            names = sorted(glob(str(folder / Path(pattern).expanduser())))  # noqa: PTH207 - it may be absolute
            found += [_text(Path(name), depth + 1) for name in names]
        found.append("Host *")
    return "\n".join([*found, ""])
