"""The SSH connection by the system's OpenSSH: its configuration, agent and jump hosts count."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.ssh.connection import ALIVE_S, CONNECT_S, END_S, MOST_JUMPS, SILENT, SshConnection, no_client
from skyward.system import threading

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
    if depth >= MOST_JUMPS:
        raise ProviderError(f"The SSH configuration leads to {host.name} in a circle of jump hosts.")
    jump = SshHost.parse(jumps[-1] if "://" in jumps[-1] else f"ssh://{jumps[-1]}")
    jump = replace(jump, known_hosts=host.known_hosts)
    jump = replace(jump, way=tuple(_way(jump, jumps[:-1] or None, depth + 1)))
    proxy = " ".join(
        shlex.quote(word if word == _TARGET else word.replace("%", "%%"))
        for word in jump.command(options=("-W", _TARGET))
    )
    return [*words, "-o", f"ProxyCommand={proxy}", "-o", "ProxyUseFdpass=no"]


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
