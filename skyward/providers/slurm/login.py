"""The login node: this machine, or one that is reached by SSH; where Slurm's commands run and the shared disk is."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from skyward.errors import ConfigError, ProviderError, WireError
from skyward.model.ssh import SshHost
from skyward.nodes.claimed import DIAL_S, dial_directly
from skyward.ssh.connection import CONNECT_S, connect
from skyward.system import socket, threading

_READY = "skyward-login"
_ANSWER_S = 60.0  # a controller under load takes its time
_AT_ONCE = 4  # commands; an sshd has ten sessions for one connection
# Where Slurm is not in the PATH of commands, the site's files for login shells know it.
_FIND_SLURM = "export LC_ALL=C; command -v sbatch >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1\n"
MARK = b"skyward-begin\n"  # what stands before it people's shell files have printed, or prologs of the site
SAY_MARK = "echo skyward-begin"


@dataclass(frozen=True, slots=True)
class LoginAddress:
    """Where the login node is.

    Attributes:
        host: the machine that is reached by SSH; None for this one.
    """

    host: SshHost | None

    @classmethod
    def of(cls, login: str | None, key: Path | None, known_hosts: Path | None) -> LoginAddress:
        """The login node that a caller names.

        Raises:
            ConfigError: the text is no such address, or files are given for SSH that is not used.
        """
        if login is None:
            if key or known_hosts:
                raise ConfigError("sky.Slurm: key= and known_hosts= are for a login node that is reached by SSH.")
            return cls(None)
        if not isinstance(login, str):
            raise ConfigError(f"sky.Slurm: a login node is named as 'user@host:port'; found {login!r}.")
        host = SshHost.parse(login if "://" in login else f"ssh://{login}")
        files = [str(path) if path else None for path in (key, known_hosts)]
        return cls(replace(host, key=files[0], known_hosts=files[1]))

    @property
    def name(self) -> str:
        """Its name for messages."""
        return self.host.name if self.host else "this machine"


class Login:
    """An open way to the login node.

    Args:
        address: where it is.
        folder: a private directory here for the sockets of the connection.

    Raises:
        ProviderError: it cannot be reached.
    """

    def __init__(self, address: LoginAddress, folder: Path) -> None:
        self.address = address
        self._connection = None
        self._sessions = threading.Semaphore(_AT_ONCE)
        if address.host is not None:
            own = folder / "login"
            own.mkdir(mode=0o700)
            script = f"echo {_READY}; exec cat >/dev/null"
            self._connection = connection = connect(address.host, own, "sh", "-c", script)
            line = connection.wait_line(2 * CONNECT_S)
            while line is not None and line != _READY:  # people's shell files may print something
                line = connection.wait_line(2 * CONNECT_S)
            if line is None:
                connection.kill()
                raise ProviderError(f"The login node {address.name} cannot be reached: {connection.problem}")

    def shell(self, script: str) -> list[str]:
        """The command line here that runs a shell script there, in which Slurm's commands are found."""
        words = ["sh", "-c", _FIND_SLURM + script]
        return words if self._connection is None else self._connection.through.command(*words)

    def run(self, script: str, data: bytes | IO[bytes] = b"", *, timeout_s: float = _ANSWER_S) -> str:
        """What a shell script prints there; `data`, or an open file, is its standard input.

        Raises:
            ProviderError: it fails; the message has what it said. Or the login node is gone, or does not answer.
        """
        words = self.shell(f"{SAY_MARK}; {SAY_MARK} >&2\n{script}")
        given: dict[str, Any] = {"input": data} if isinstance(data, bytes) else {"stdin": data}
        with self._sessions:
            try:
                # a session of its own: Ctrl-C is the client's alone
                done: subprocess.CompletedProcess[bytes] = subprocess.run(
                    words, **given, capture_output=True, check=False, timeout=timeout_s, start_new_session=True
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                if gone := self.why_gone():
                    raise ProviderError(f"The login node {gone}.") from error
                raise ProviderError(
                    f"The login node {self.address.name} did not answer within {timeout_s:g} s ({error})."
                    if isinstance(error, subprocess.TimeoutExpired)
                    else f"A command for the login node {self.address.name} could not be started: {error}."
                ) from error
        if done.returncode:
            said = _after_mark(done.stderr).strip() or _after_mark(done.stdout).strip()
            raise ProviderError(
                f"The login node {gone}."
                if (gone := self.why_gone())
                else f"A command on the login node {self.address.name} failed with status {done.returncode}: {said}"
            )
        return _after_mark(done.stdout)

    def put(self, folder: str, archive: bytes) -> None:
        """Unpack a tar archive into a folder there, which is made; all of it opens for its owner only.

        Raises:
            ProviderError: it cannot be written.
        """
        where = shlex.quote(folder)
        self.run(f"set -e; umask 077; mkdir -p {where}; tar -xf - -C {where}", archive, timeout_s=10 * _ANSWER_S)

    def dial(self, address: str, port: int) -> socket.socket:
        """A connected socket to a node of the cluster: directly, or through the SSH connection.

        Raises:
            OSError: nothing listens there, or it cannot be reached.
        """
        if self._connection is None:
            return dial_directly(address, port)
        host = f"[{address}]" if ":" in address else address
        try:
            sock = self._connection.dial(f"{host}:{port}")
        except (ProviderError, WireError) as error:
            raise ConnectionError(str(error)) from error
        sock.settimeout(DIAL_S)
        return sock

    def why_gone(self) -> str:
        """Why it cannot be asked any more, to complete "Node 1 ..."; "" if it can."""
        connection = self._connection
        if connection is not None and connection.ended.is_set():
            why = connection.why or "without a reason given"
            return f"is unreachable: the SSH connection to the login node {self.address.name} ended ({why})"
        return ""

    def close(self) -> None:
        """End the connection; nothing happens the second time."""
        if self._connection is not None:
            self._connection.kill()


def _after_mark(said: bytes) -> str:
    """What a script itself has printed; all of it where none has begun, as when SSH fails."""
    return said.rpartition(MARK)[2].decode(errors="replace")


def quoted(words: Sequence[str | os.PathLike[str]]) -> str:
    """Words as a shell takes them."""
    return shlex.join(str(word) for word in words)
