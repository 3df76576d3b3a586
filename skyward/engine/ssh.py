"""One connection to a machine by the system's OpenSSH: a session that runs a command, and forwards of its sockets.

OpenSSH and nothing else: users have it set up already (configuration, agent, jump hosts), and bulk data goes through
its forwards several times as fast as through those of SSH libraries in Python (`benchmarks/ssh.py` measures it).
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

from skyward.engine.address import EngineAddress
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost

CONNECT_S = 8.0  # until the other side's first word
_ALIVE_S, _SILENT = 1, 5  # a sign of life is asked for each second; so many without an answer end the connection
_END_S = 2.0  # ssh's time to leave by itself
_FORWARD_S = 10.0
_READ_S = 10.0  # for ssh to read its configuration, which may run commands
_MOST_JUMPS = 16
_TARGET = "[%h]:%p"  # what ssh makes the address of where a proxy is to lead
OPTIONS = {
    "ConnectTimeout": f"{CONNECT_S:.0f}",
    "ServerAliveInterval": str(_ALIVE_S),
    "ServerAliveCountMax": str(_SILENT),
    "ControlPersist": "no",
    "Ciphers": "^aes128-gcm@openssh.com",  # processors have instructions for it: twice the default's bandwidth
    "StreamLocalBindUnlink": "yes",
    "ClearAllForwardings": "yes",  # those that the configuration asks for are for people
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "Tunnel": "no",
}


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
    configured = _configuration(host)
    words = ["-o", "GSSAPIKeyExchange=no"] if configured.get("gssapikeyexchange") == "yes" else []
    if jumps is None:
        named = "none" if host.trusts_jumps else configured.get("proxyjump", "none")
        jumps = [] if named == "none" else named.split(",")
    if not jumps:
        return words
    if depth >= _MOST_JUMPS:
        raise ProviderError(f"The SSH configuration leads to {host.name} in a circle of jump hosts.")
    jump = SshHost.parse(jumps[-1] if "://" in jumps[-1] else f"ssh://{jumps[-1]}")
    jump = replace(jump, known_hosts=host.known_hosts)
    jump = replace(jump, way=tuple(_way(jump, jumps[:-1] or None, depth + 1)))
    proxy = " ".join(
        shlex.quote(word if word == _TARGET else word.replace("%", "%%"))
        for word in jump.command(options=("-W", _TARGET))
    )
    return [*words, "-o", f"ProxyCommand={proxy}", "-o", "ProxyUseFdpass=no"]


def _configuration(host: SshHost) -> dict[str, str]:
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
        raise _no_ssh(host, error) from error
    except subprocess.TimeoutExpired as error:
        raise ProviderError(f"ssh did not read its configuration for {host.name} within {_READ_S:g} s.") from error
    if done.returncode:
        why = host.meaning(done.stderr) or done.stderr.strip().rpartition("\n")[2]
        raise ProviderError(f"ssh could not read its configuration for {host.name}: {why}")
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def _no_ssh(host: SshHost, error: OSError) -> ProviderError:
    return ProviderError(
        f"The ssh command could not be started ({error}). Reaching {host.name} takes OpenSSH's client; install it "
        "(Debian: openssh-client)."
    )


class SshConnection:
    """A connection that is being made, is open, or has ended; `wait_line` blocks until it is known which.

    It ends with its session: never one without (`ssh -N`), because forwards then stall on each reply.

    Args:
        host: the machine.
        folder: a private directory for its sockets; its path must be short.
        words: the command of the session.

    Raises:
        ProviderError: there is no ssh command, or it cannot read its configuration.
    """

    def __init__(self, host: SshHost, folder: Path, *words: str) -> None:
        self.host, self.ended = checked_way(host), threading.Event()
        self._folder, self._control = folder, folder / "ssh"
        self._errors = TemporaryFile()  # noqa: SIM115 - closed when the connection has ended
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._lines: list[str] = []
        self._forwards = 0
        self._said = ""
        self._at_end: list[Callable[[], None]] = []
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
            raise _no_ssh(host, error) from error
        threading.Thread(target=self._read, name=f"ssh-{host.name}", daemon=True).start()

    @property
    def through(self) -> SshHost:
        """The machine, for commands that go through this connection."""
        return replace(self.host, control=str(self._control))

    @property
    def why(self) -> str:
        """Why it ended, as a sentence's part; "" where nothing was said."""
        return self._said.strip().splitlines()[-1].strip().rstrip(".") if self._said.strip() else ""

    @property
    def problem(self) -> str:
        """Why it did not come about or ended, and what to do, in sentences."""
        meaning = self.host.meaning(self._said)
        return (
            f"{meaning[0].upper()}{meaning[1:]}"
            if meaning
            else f"The SSH connection ended: {self.why or 'ssh gave no reason'}."
        )

    def send(self, line: str) -> None:
        """Give the session's command a line; nothing happens if the connection has ended."""
        with self._lock, suppress(OSError, ValueError):
            assert self._ssh.stdin
            self._ssh.stdin.write(f"{line}\n".encode())
            self._ssh.stdin.flush()

    def wait_line(self, timeout_s: float) -> str | None:
        """The next line that the session's command printed; None at its end, or if none comes in time."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self.ended.is_set(), timeout_s)
            return self._lines.pop(0) if self._lines else None

    def at_end(self, action: Callable[[], None]) -> None:
        """Have something done when the connection ends, by whichever side; at once if it has."""
        with self._news:
            if not self.ended.is_set():
                self._at_end.append(action)
                return
        action()

    def forward(self, remote: str) -> Path:
        """A socket here that leads to one there: a path, or `host:port`.

        Raises:
            ProviderError: the connection has ended, or the machine allows no forwards.
        """
        with self._lock:
            self._forwards += 1
            local = self._folder / f"f{self._forwards}"
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

    def engine(self, remote: str) -> ForwardedEngine:
        """Where the engine that listens there at this path can be spoken to from here."""
        return ForwardedEngine(
            path=self.forward(remote), origin=f"the SSH connection to {self.host.name}", host=self.host
        )

    def close(self) -> None:
        """End the session's input, which asks its command to end, and then the connection. Idempotent."""
        with self._lock, suppress(OSError):
            if self._ssh.stdin:
                self._ssh.stdin.close()
        if not self.ended.wait(_END_S):
            self.kill()

    def kill(self) -> None:
        """End the connection at once, with everything that goes through it."""
        self._ssh.terminate()
        self.ended.wait(_END_S)

    def _read(self) -> None:
        assert self._ssh.stdout
        with self._ssh.stdout as lines:
            for line in lines:
                with self._news:
                    self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
                    self._news.notify_all()
        try:
            self._ssh.wait(_END_S)  # forwards that are in use keep it from ending
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        with self._lock, suppress(OSError):
            assert self._ssh.stdin
            self._ssh.stdin.close()
        self._errors.seek(0)
        self._said = self._errors.read().decode(errors="replace")
        self._errors.close()
        with self._news:
            self.ended.set()
            actions, self._at_end = self._at_end, []
            self._news.notify_all()
        for action in actions:
            action()
