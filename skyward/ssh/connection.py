"""One SSH connection to a machine: a session that runs a command, and forwards of the machine's sockets.

It is made by the system's OpenSSH, whose configuration, agent and jump hosts count, and where that is not installed by
paramiko (`paramiko_client.py`). OpenSSH is preferred because users have it set up already, and because its forwards
carry bulk data several times as fast as those of SSH libraries in Python (`benchmarks/ssh.py` measures it).

A detached run reaches hosts that it was given with its launch: the program names them as the user's SSH configuration
does, and a file in the run's directory says at which address each is, as whom to log in, and which host key to expect.
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
from skyward.system import socket, threading, time
from skyward.wire.frames import dial

CONNECT_S = 8.0  # for the machine's first answer
ALIVE_S, SILENT = 1, 5  # a sign of life is asked for each second; after so many without an answer the connection ends
END_S = 2.0  # for the connection to end by itself
MOST_JUMPS = 16
_FORWARD_S = 10.0
_READ_S = 10.0  # for ssh to read its configuration, which may run commands
_TARGET = "[%h]:%p"  # what ssh makes the address of where a proxy is to lead
OPTIONS = {
    "ConnectTimeout": f"{CONNECT_S:.0f}",
    "ServerAliveInterval": str(ALIVE_S),
    "ServerAliveCountMax": str(SILENT),
    "ControlPersist": "no",
    "Ciphers": "^aes128-gcm@openssh.com",  # processors have instructions for it: twice the default's bandwidth
    "StreamLocalBindUnlink": "yes",
    "ClearAllForwardings": "yes",  # those that the configuration asks for are for people
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "Tunnel": "no",
}
KEY_FILE, KNOWN_HOSTS_FILE, _HANDED_FILE = "key", "known_hosts", "hosts.json"  # of a detached run


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedEngine(EngineAddress):
    """The engine of a machine reached by SSH, through a socket here.

    Attributes:
        host: the machine.
    """

    host: SshHost

    @property
    def url(self) -> str:
        """The machine, for messages."""
        return self.host.url


class SshConnection(ABC):
    """A connection that is being made, is open, or has ended; `wait_line` blocks until it is known which.

    It ends with its session.

    Attributes:
        host: the machine.
        ended: is set when the connection has ended.
    """

    def __init__(self, host: SshHost, folder: Path) -> None:
        self.host, self.ended = host, threading.Event()
        self._folder = folder
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._lines: list[str] = []
        self._forwards = 0
        self._dialling, self._dialled = threading.Lock(), dict[str, Path]()
        self._said = ""
        self._at_end: list[Callable[[], None]] = []

    @property
    @abstractmethod
    def through(self) -> SshHost:
        """The machine, for commands of OpenSSH's that go through this connection.

        Raises:
            ProviderError: OpenSSH is not installed.
        """

    @abstractmethod
    def send(self, line: str) -> None:
        """Give the session's command a line; nothing happens if the connection has ended."""

    @abstractmethod
    def forward(self, remote: str) -> Path:
        """A socket here that leads to one there: a path, or `host:port`.

        Raises:
            ProviderError: the connection has ended, or the machine allows no forwards.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the connection at once, with everything that goes through it."""

    @abstractmethod
    def _end_input(self) -> None: ...

    @property
    def why(self) -> str:
        """Why it ended, as a sentence's part."""
        said = self._said.strip()
        return said.splitlines()[-1].strip().rstrip(".") if said else "without a reason given"

    @property
    def problem(self) -> str:
        """Why it did not come about or ended, and what to do, in sentences."""
        meaning = self.host.meaning(self._said)
        if meaning:
            return f"{meaning[0].upper()}{meaning[1:]}"
        return f"The SSH connection ended: {self.why if self._said.strip() else 'ssh gave no reason'}."

    def wait_line(self, timeout_s: float) -> str | None:
        """The next line that the session's command printed; None at its end, or if none comes in time."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self.ended.is_set(), timeout_s)
            return self._lines.pop(0) if self._lines else None

    def wait_marked(self, mark: str, timeout_s: float) -> str | None:
        """As `wait_line`, without the mark that it begins with; what shell files of the user print is passed over."""
        deadline = time.monotonic() + timeout_s
        while (line := self.wait_line(max(0.0, deadline - time.monotonic()))) is not None:
            before, found, said = line.partition(mark)
            if found and not before:
                return said
        return None

    def at_end(self, action: Callable[[], None]) -> None:
        """Have something done when the connection ends, by whichever side; at once if it has."""
        with self._news:
            if not self.ended.is_set():
                self._at_end.append(action)
                return
        action()

    def engine(self, remote: str) -> ForwardedEngine:
        """The address here of the engine that listens at this path there."""
        return ForwardedEngine(
            path=self.forward(remote), origin=f"the SSH connection to {self.host.name}", host=self.host
        )

    def dial(self, remote: str) -> socket.socket:
        """A connected socket to one there, through a forward that is made when it is first dialled; see `forward`.

        Raises:
            ProviderError: there is no forward.
            WireError: nothing listens there.
        """
        with self._dialling:
            if remote not in self._dialled:
                self._dialled[remote] = self.forward(remote)
            local = self._dialled[remote]
        return dial(local.parent, f"unix:{local.name}")

    def close(self) -> None:
        """End the session's input, which asks its command to end, and then the connection. Idempotent."""
        self._end_input()
        if not self.ended.wait(END_S):
            self.kill()

    def _next_forward(self) -> Path:
        with self._lock:
            self._forwards += 1
            return self._folder / f"f{self._forwards}"

    def _hear(self, line: bytes) -> None:
        with self._news:
            self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
            self._news.notify_all()

    def _end(self, said: str) -> None:
        """Note that the connection has ended, and why."""
        self._said = said
        with self._news:
            self.ended.set()
            actions, self._at_end = self._at_end, []
            self._news.notify_all()
        for action in actions:
            action()


def checked_way(host: SshHost) -> SshHost:
    """The host, with the options that keep the way to it to the keys of `known_hosts`, where that is given.

    ssh gives the options of its command line to no jump host: it starts another ssh for each, which only reads the
    configuration. So the jumps are made here, each with the same options. The key exchange by GSSAPI of some
    distributions' ssh asks for no host key; others do not know its option.

    Raises:
        ProviderError: ssh cannot read its configuration, or jumps lead in a circle.
    """
    return host if host.known_hosts is None else replace(host, way=tuple(_way(host, None, 0)))


def _way(host: SshHost, jumps: Sequence[str] | None, depth: int) -> list[str]:
    """Options for one machine. `jumps` come before it; None for those that the configuration names."""
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
    """The jump host that is next to a machine; `depth` machines come after that one.

    Raises:
        ProviderError: jumps lead in a circle.
    """
    if depth >= MOST_JUMPS:
        raise ProviderError(f"The SSH configuration leads to {host.name} in a circle of jump hosts.")
    return SshHost.parse(jumps[-1] if "://" in jumps[-1] else f"ssh://{jumps[-1]}")


def configuration(host: SshHost) -> dict[str, str]:
    """What the SSH configuration says of a machine, by the names of its options in small letters."""
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
            # a session of its own: Ctrl-C is the client's alone
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
            self._ssh.wait(END_S)  # forwards that are in use keep it from ending
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        self._end_input()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")
        self._errors.close()
        self._end(said)


def no_client(host: SshHost, error: OSError) -> ProviderError:
    """The error where no SSH client is installed."""
    return ProviderError(
        f"The ssh command could not be started ({error}). Reaching {host.name} takes OpenSSH's client (Debian: "
        "openssh-client) or the package paramiko (`pip install 'skyward[ssh]'`); install one of them."
    )


def connect(host: SshHost, folder: Path, *words: str) -> SshConnection:
    """Start to connect: by OpenSSH, or by paramiko where OpenSSH's client is not installed.

    Args:
        host: the machine.
        folder: a private directory for sockets; its path must be short.
        words: the command of the session.

    Raises:
        ProviderError: neither is installed, or the SSH configuration cannot be read.
    """
    if uses_paramiko():
        from skyward.ssh.paramiko_client import ParamikoConnection

        return ParamikoConnection(host, folder, *words)
    return OpenSshConnection(host, folder, *words)


def uses_paramiko() -> bool:
    """Whether paramiko makes the connections."""
    return shutil.which("ssh") is None and find_spec("paramiko") is not None


def client_version() -> str:
    """What makes the connections, with its version; "" where nothing can."""
    if uses_paramiko():
        from importlib.metadata import version

        return f"paramiko {version('paramiko')}"
    try:
        done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stderr.partition(",")[0].strip()


# the hosts of a detached run: its driver has no SSH configuration, and the key of this run alone --------------------


def write_handed(folder: Path, hosts: Mapping[str, SshHost]) -> None:
    """Leave a driver its hosts, by the names that the program has for them; key and host keys lie beside the file."""
    write_json(folder / _HANDED_FILE, {name: [host.host, host.user, host.port] for name, host in hosts.items()})


def handed_hosts() -> Mapping[str, SshHost]:
    """The hosts of the detached run that this process belongs to; none outside of one."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return read_handed(Path(folder)) if folder else {}


@lru_cache(maxsize=8)
def read_handed(folder: Path) -> Mapping[str, SshHost]:
    """The hosts that were left in a run's directory."""
    file = folder / _HANDED_FILE
    if not file.is_file():
        return {}
    key, known = str(folder / KEY_FILE), str(folder / KNOWN_HOSTS_FILE)
    return {
        name: SshHost(host=host, user=user, port=port, key=key, known_hosts=known)
        for name, (host, user, port) in json.loads(file.read_text()).items()
    }
