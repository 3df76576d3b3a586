"""An SSH connection to a machine: a session that runs a command, and forwards to the machine's sockets.

The connection uses the system's OpenSSH, with its configuration, agent and jump hosts, or paramiko
(`paramiko_client.py`) if OpenSSH is not installed. OpenSSH is preferred because users have configured it already, and
because its forwards carry bulk data several times as fast as those of Python's SSH libraries (measured by
`benchmarks/ssh.py`).

A detached run reaches the hosts it was launched with: the program uses their names from the user's SSH configuration,
and a file in the run's directory maps these to address, user and expected host key.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

from skyward.engine.address import EngineAddress
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.records.run import FOLDER_VARIABLE, write_json
from skyward.system import Empty, SimpleQueue, socket, threading, time
from skyward.wire.frames import dial

CONNECT_S = 8.0  # for the machine's first answer
ALIVE_S, SILENT = 1, 5  # a keep-alive is sent every second; after this many without an answer the connection ends
END_S = 2.0  # for the connection to end on its own
MOST_JUMPS = 16
_FORWARD_S = 10.0
_READ_S = 10.0  # for ssh to read its configuration, which may run commands
_TARGET = "[%h]:%p"  # ssh replaces it by the address that a proxy is to connect to
OPTIONS = {
    "ConnectTimeout": f"{CONNECT_S:.0f}",
    "ServerAliveInterval": str(ALIVE_S),
    "ServerAliveCountMax": str(SILENT),
    "ControlPersist": "no",
    "Ciphers": "^aes128-gcm@openssh.com",  # processors have instructions for it, which doubles the default's bandwidth
    "StreamLocalBindUnlink": "yes",
    "ClearAllForwardings": "yes",  # those in the configuration are meant for interactive use
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "Tunnel": "no",
}
KEY_FILE, KNOWN_HOSTS_FILE, _HANDED_FILE = "key", "known_hosts", "hosts.json"  # of a detached run


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedEngine(EngineAddress):
    """The engine of a machine reached by SSH, through a local socket.

    Attributes:
        host: the machine.
    """

    host: SshHost

    @property
    def url(self) -> str:
        """The machine's URL, for messages."""
        return self.host.url


class SshConnection(ABC):
    """A connection that is being established, is open, or has ended; `wait_line` blocks until it is known which.

    The connection ends with its session.

    Attributes:
        host: the machine.
        ended: set when the connection has ended.
    """

    def __init__(self, host: SshHost, folder: Path) -> None:
        self.host, self.ended = host, threading.Event()
        self._folder = folder
        self._lock = threading.Lock()
        self._lines: SimpleQueue[str | None] = SimpleQueue()  # None at the end
        self._forwards = 0
        self._dialling, self._dialled = threading.Lock(), dict[str, Path]()
        self._said = ""
        self._at_end: list[Callable[[], None]] = []

    @property
    @abstractmethod
    def through(self) -> SshHost:
        """The machine, for OpenSSH commands that use this connection.

        Raises:
            ProviderError: OpenSSH is not installed.
        """

    @abstractmethod
    def send(self, line: str) -> None:
        """Send a line to the session's command; does nothing if the connection has ended."""

    @abstractmethod
    def forward(self, remote: str) -> Path:
        """Return a local socket that leads to a remote one: a path, or `host:port`.

        Raises:
            ProviderError: the connection has ended, or the machine does not allow forwards.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the connection and all its forwards at once."""

    @abstractmethod
    def _end_input(self) -> None: ...

    @property
    def why(self) -> str:
        """Why it ended, as part of a sentence."""
        said = self._said.strip()
        return said.splitlines()[-1].strip().rstrip(".") if said else "without a reason given"

    @property
    def problem(self) -> str:
        """Why it failed or ended, and what to do, in sentences."""
        meaning = self.host.meaning(self._said)
        if meaning:
            return f"{meaning[0].upper()}{meaning[1:]}"
        return f"The SSH connection ended: {self.why if self._said.strip() else 'ssh gave no reason'}."

    def wait_line(self, timeout_s: float) -> str | None:
        """Return the next line that the session's command printed; None at its end, or if none arrives in time."""
        try:
            line = self._lines.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None
        if line is None:
            self._lines.put(None)  # for the next call
        return line

    def wait_marked(self, mark: str, timeout_s: float) -> str | None:
        """Like `wait_line`, for lines that start with a mark, which is removed; users' shell files may print others."""
        deadline = time.monotonic() + timeout_s
        while (line := self.wait_line(deadline - time.monotonic())) is not None:
            before, found, said = line.partition(mark)
            if found and not before:
                return said
        return None

    def at_end(self, action: Callable[[], None]) -> None:
        """Call an action when the connection ends, for whatever reason; at once if it has ended."""
        with self._lock:
            if not self.ended.is_set():
                self._at_end.append(action)
                return
        action()

    def engine(self, remote: str) -> ForwardedEngine:
        """Return the local address of the engine that listens at a path of the machine."""
        return ForwardedEngine(
            path=self.forward(remote), origin=f"the SSH connection to {self.host.name}", host=self.host
        )

    def dial(self, remote: str) -> socket.socket:
        """Return a socket connected to a remote one, through a forward created at the first call; see `forward`.

        Raises:
            ProviderError: the forward could not be created.
            WireError: nothing is listening there.
        """
        with self._dialling:
            if remote not in self._dialled:
                self._dialled[remote] = self.forward(remote)
            local = self._dialled[remote]
        return dial(local.parent, f"unix:{local.name}")

    def close(self) -> None:
        """Close the session's input, which asks its command to end, and then the connection. Idempotent."""
        self._end_input()
        if not self.ended.wait(END_S):
            self.kill()

    def _next_forward(self) -> Path:
        with self._lock:
            self._forwards += 1
            return self._folder / f"f{self._forwards}"

    def _hear(self, line: bytes) -> None:
        self._lines.put(line.decode(errors="replace").rstrip("\r\n"))

    def _end(self, said: str) -> None:
        """Record that the connection has ended, and why."""
        self._said = said
        with self._lock:
            self.ended.set()
            actions, self._at_end = self._at_end, []
        self._lines.put(None)
        for action in actions:
            action()


def checked_way(host: SshHost) -> SshHost:
    """Return the host with options that restrict the whole route to the keys of `known_hosts`, if that is given.

    ssh does not pass the options of its command line on to jump hosts: for each it starts another ssh, which only reads
    the configuration. The jumps are therefore built here, each with the same options. The GSSAPI key exchange in
    some distributions' ssh checks no host key; other versions do not know the option that disables it.

    Raises:
        ProviderError: ssh cannot read its configuration, or the jumps are circular.
    """
    return host if host.known_hosts is None else replace(host, way=tuple(_way(host, None, 0)))


def _way(host: SshHost, jumps: Sequence[str] | None, depth: int) -> list[str]:
    """Return the options for one machine. `jumps` come before it; None for those in the configuration."""
    configured = configuration(host)
    words = ["-o", "GSSAPIKeyExchange=no"] if configured.get("gssapikeyexchange") == "yes" else []
    if jumps is None:
        named = "none" if host.trusts_jumps else configured.get("proxyjump", "none")
        jumps = [] if named == "none" else named.split(",")
    if not jumps:
        return words
    jump = replace(last_jump(host, jumps, depth), known_hosts=host.known_hosts)
    jump = replace(jump, way=tuple(_way(jump, jumps[:-1] or None, depth + 1)))
    proxy = " ".join(
        shlex.quote(word if word == _TARGET else word.replace("%", "%%"))
        for word in jump.command(options=("-W", _TARGET))
    )
    return [*words, "-o", f"ProxyCommand={proxy}", "-o", "ProxyUseFdpass=no"]


def last_jump(host: SshHost, jumps: Sequence[str], depth: int) -> SshHost:
    """Parse the jump host directly before a machine; `depth` machines come after that one.

    Raises:
        ProviderError: the jumps are circular.
    """
    if depth >= MOST_JUMPS:
        raise ProviderError(f"The SSH configuration leads to {host.name} in a circle of jump hosts.")
    return SshHost.parse(jumps[-1] if "://" in jumps[-1] else f"ssh://{jumps[-1]}")


def configuration(host: SshHost) -> dict[str, str]:
    """Return a machine's settings in the SSH configuration, by option name in lower case."""
    try:
        done = subprocess.run(
            host.command(options=("-G",)),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_READ_S,
        )
    except OSError as error:
        raise no_client(host, error) from error
    except subprocess.TimeoutExpired as error:
        raise ProviderError(f"ssh did not read its configuration for {host.name} within {_READ_S:g} s.") from error
    if done.returncode:
        why = host.meaning(done.stderr) or done.stderr.strip().rpartition("\n")[2]
        raise ProviderError(f"ssh could not read its configuration for {host.name}: {why}")
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


class OpenSshConnection(SshConnection):
    """A connection by an `ssh` process with a session: without one (`ssh -N`) forwards would stall on each reply.

    Raises:
        ProviderError: there is no ssh command, or it cannot read its configuration.
    """

    def __init__(self, host: SshHost, folder: Path, *words: str) -> None:
        super().__init__(checked_way(host), folder)
        self._control = folder / "ssh"
        self._errors = TemporaryFile()  # noqa: SIM115 - closed when the connection has ended
        options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
        command = self.host.command(*words, options=("-M", "-S", str(self._control), *options))
        try:
            # a separate session, so that Ctrl-C reaches only the client
            self._ssh = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            raise no_client(host, error) from error
        threading.Thread(target=self._read, name=f"ssh-{host.name}", daemon=True).start()

    @property
    def through(self) -> SshHost:
        return replace(self.host, control=str(self._control))

    def send(self, line: str) -> None:
        with self._lock, suppress(OSError, ValueError):
            assert self._ssh.stdin
            self._ssh.stdin.write(f"{line}\n".encode())
            self._ssh.stdin.flush()

    def forward(self, remote: str) -> Path:
        local = self._next_forward()
        words = ("-F", "none", "-S", str(self._control), "-O", "forward", "-o", "StreamLocalBindMask=0177")
        try:
            done = subprocess.run(
                ["ssh", *words, "-L", f"{local}:{remote}", "--", "connected"],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_FORWARD_S,
            )
            if not done.returncode:
                return local
            why = done.stderr.strip().rstrip(".")
        except subprocess.TimeoutExpired:
            why = f"there was no answer within {_FORWARD_S:g} s"
        advice = "Its sshd must allow forwarding (AllowStreamLocalForwarding)."
        raise ProviderError(
            f"{remote} on {self.host.name} cannot be reached through SSH: {why}. "
            f"{self.problem if self.ended.is_set() else advice}"
        )

    def _end_input(self) -> None:
        with self._lock, suppress(OSError):
            assert self._ssh.stdin
            self._ssh.stdin.close()

    def kill(self) -> None:
        self._ssh.terminate()
        self.ended.wait(END_S)

    def _read(self) -> None:
        assert self._ssh.stdout
        with self._ssh.stdout as lines:
            for line in lines:
                self._hear(line)
        try:
            self._ssh.wait(END_S)  # forwards in use prevent it from ending
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        self._end_input()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")
        self._errors.close()
        self._end(said)


def no_client(host: SshHost, error: OSError) -> ProviderError:
    """Return the error for systems without an SSH client."""
    return ProviderError(
        f"The ssh command could not be started ({error}). Reaching {host.name} takes OpenSSH's client (Debian: "
        "openssh-client) or the package paramiko (`pip install 'skyward[ssh]'`); install one of them."
    )


def connect(host: SshHost, folder: Path, *words: str) -> SshConnection:
    """Start connecting: with OpenSSH, or with paramiko if OpenSSH's client is not installed.

    Args:
        host: the machine.
        folder: a private directory for sockets; its path must be short.
        words: the session's command.

    Raises:
        ProviderError: neither is installed, or the SSH configuration cannot be read.
    """
    if uses_paramiko():
        from skyward.ssh.paramiko_client import ParamikoConnection

        return ParamikoConnection(host, folder, *words)
    return OpenSshConnection(host, folder, *words)


def uses_paramiko() -> bool:
    """Return whether connections are made by paramiko."""
    return shutil.which("ssh") is None and find_spec("paramiko") is not None


def client_version() -> str:
    """Return name and version of the SSH client; "" if there is none."""
    if uses_paramiko():
        from importlib.metadata import version

        return f"paramiko {version('paramiko')}"
    try:
        done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stderr.partition(",")[0].strip()


# the hosts of a detached run: its driver has no SSH configuration, and only this run's key --------------------------


def write_handed(folder: Path, hosts: Mapping[str, SshHost]) -> None:
    """Write a driver's hosts by their names in the program; key and host keys are in files next to it."""
    write_json(folder / _HANDED_FILE, {name: [host.host, host.user, host.port] for name, host in hosts.items()})


def handed_hosts() -> Mapping[str, SshHost]:
    """Return the hosts of the detached run that this process belongs to; empty outside of one."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return read_handed(Path(folder)) if folder else {}


@lru_cache(maxsize=8)
def read_handed(folder: Path) -> Mapping[str, SshHost]:
    """Return the hosts recorded in a run's directory."""
    file = folder / _HANDED_FILE
    if not file.is_file():
        return {}
    key, known = str(folder / KEY_FILE), str(folder / KNOWN_HOSTS_FILE)
    return {
        name: SshHost(host=host, user=user, port=port, key=key, known_hosts=known)
        for name, (host, user, port) in json.loads(file.read_text()).items()
    }
