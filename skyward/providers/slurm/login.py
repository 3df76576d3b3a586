"""A cluster's login node, local or reached by SSH, and the facts it reports about its cluster.

Slurm's commands run there, and it has the disk that all machines of the cluster share.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from skyward.errors import ConfigError, ProviderError
from skyward.model.image_fields import PLATFORMS
from skyward.model.ssh import SshHost
from skyward.nodes.claimed import dial_program
from skyward.ssh.connection import CONNECT_S, connect
from skyward.system import socket, threading

_READY = "skyward-login"
_ANSWER_S = 60.0  # a controller under load is slow
_AT_ONCE = 4  # commands; an sshd allows ten sessions per connection
# If Slurm is not in the PATH of commands, the site's files for login shells may add it.
_FIND_SLURM = "export LC_ALL=C; command -v sbatch >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1\n"
MARK = b"skyward-begin\n"  # printed after any output of users' shell files or the site's prologs
SAY_MARK = "echo skyward-begin"


@dataclass(frozen=True, slots=True)
class LoginAddress:
    """The address of a login node.

    Attributes:
        host: the machine to reach by SSH; None for this one.
    """

    host: SshHost | None

    @classmethod
    def of(cls, login: str | None, key: Path | None, known_hosts: Path | None) -> LoginAddress:
        """Return the login node that a caller specifies.

        Raises:
            ConfigError: the text is not such an address, or SSH files are given although SSH is not used.
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
    """An open connection to the login node.

    Args:
        address: its address.
        folder: a private local directory for the sockets of the connection.

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
            if connection.wait_marked(_READY, 2 * CONNECT_S) is None:
                connection.kill()
                raise ProviderError(f"The login node {address.name} cannot be reached: {connection.problem}")

    def shell(self, script: str, *, terminal: bool = False) -> list[str]:
        """Return the local command line that runs a shell script there, with Slurm's commands in its PATH."""
        words = ["sh", "-c", _FIND_SLURM + script]
        if self._connection is None:
            return words
        return self._connection.through.command(*words, options=("-t",) if terminal else ())

    def run(self, script: str, data: bytes | IO[bytes] = b"", *, timeout_s: float = _ANSWER_S) -> str:
        """Run a shell script there and return its output; `data`, or an open file, is its standard input.

        Raises:
            ProviderError: it failed, with its output in the message; or the login node is lost or does not answer.
        """
        words = self.shell(f"{SAY_MARK}; {SAY_MARK} >&2\n{script}")
        given: dict[str, Any] = {"input": data} if isinstance(data, bytes) else {"stdin": data}
        with self._sessions:
            try:
                # a separate session, so that Ctrl-C reaches only the client
                done: subprocess.CompletedProcess[bytes] = subprocess.run(
                    words, **given, capture_output=True, check=False, timeout=timeout_s, start_new_session=True
                )
            except subprocess.TimeoutExpired as error:
                text = f"The login node {self.address.name} did not answer within {timeout_s:g} s ({error})."
                raise self._failure(text) from error
            except OSError as error:
                text = f"A command for the login node {self.address.name} could not be started: {error}."
                raise self._failure(text) from error
        if done.returncode:
            said = _after_mark(done.stderr).strip() or _after_mark(done.stdout).strip()
            text = f"A command on the login node {self.address.name} failed with status {done.returncode}: {said}"
            raise self._failure(text)
        return _after_mark(done.stdout)

    def _failure(self, text: str) -> ProviderError:
        """Return the error for a failed command: that the login node is lost, or else `text`."""
        return ProviderError(f"The login node {gone}." if (gone := self.why_gone()) else text)

    def dial(self, address: str, port: int) -> socket.socket:
        """Return a socket connected to a node of the cluster, directly or through the SSH connection.

        Raises:
            OSError: nothing is listening there, or it cannot be reached.
        """
        return dial_program(address, port, self._connection)

    def why_gone(self) -> str:
        """Return why it cannot be used any more, to complete "Node 1 ..."; "" if it can."""
        connection = self._connection
        if connection is not None and connection.ended.is_set():
            return f"is unreachable: the SSH connection to the login node {self.address.name} ended ({connection.why})"
        return ""

    def close(self) -> None:
        """Close the connection. Repeated calls do nothing."""
        if self._connection is not None:
            self._connection.kill()


def _after_mark(said: bytes) -> str:
    """Return the script's own output; everything if the script has not started, as when SSH fails."""
    return said.rpartition(MARK)[2].decode(errors="replace")


# facts about a cluster that are needed before jobs are submitted -----------------------------------------------------

# The script changes nothing, except that it creates the folder. Values that commands do not report are left empty.
_FACTS_SCRIPT = r"""
say() { printf 'skyward %s %s\n' "$1" "$2"; }
folder=@FOLDER@
case $folder in '~') folder=$HOME ;; '~/'*) folder=$HOME/${folder#??} ;; esac
(umask 077; mkdir -p "$folder") && say shared "$(cd "$folder" && pwd -P)"
say slurm "$(sbatch --version 2>/dev/null)"
say machine "$(uname -s) $(uname -m)"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
for name in python@PYTHON@ python3; do
    found=$(command -v $name) &&
        "$found" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "@PYTHON@")' >/dev/null &&
        say python "$found" && { "$found" -c 'import ensurepip' >/dev/null 2>&1 && say venv yes; break; }
done
say apptainer "$(apptainer --version 2>/dev/null)"
scontrol show config 2>/dev/null | sed -n 's/^\(SlurmctldHost\|SlurmctldPort\)[^=]*= */skyward \1 /p'
sinfo -h -o '%R|%P|%G' 2>/dev/null | sed 's/^/skyward partition /'
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts that the login node reports.

    Attributes:
        login: its name.
        version: version of Slurm, such as "22.05.8".
        shared: absolute path of the folder on the shared disk.
        platform: OCI platform of the login node, which is assumed for its compute nodes as well.
        libc: its C library, such as "glibc 2.36".
        interpreter: path of the Python with the client's version; "" if there is none.
        has_venv: whether that Python can create virtual environments.
        apptainer: version of Apptainer there; "" if there is none.
        controllers: addresses of Slurm's controllers, as `host:port`.
        partitions: generic resources of each partition's nodes, as Slurm prints them; "" has those of the default one.
    """

    login: str
    version: str
    shared: str
    platform: str
    libc: str
    interpreter: str
    has_venv: bool
    apptainer: str
    controllers: tuple[str, ...]
    partitions: Mapping[str, str]

    @property
    def modes(self) -> Mapping[str, str]:
        """What each `image_mode` of sky.Slurm lacks, the preferred one first; "" if nothing."""
        venv = f"{self.interpreter} on {self.login} has no venv module with pip (Debian: python3-venv)"
        none = f"there is no Python of this client's version on {self.login}"
        return {
            "apptainer": "" if self.apptainer else f"there is no Apptainer on {self.login}",
            "venv": "" if self.has_venv else venv if self.interpreter else none,
        }


def ask(login: Login, folder: str, python: str) -> ClusterFacts:
    """Query the facts from the login node.

    Raises:
        ProviderError: it has no Slurm, no controller answers, or the folder cannot be created.
    """
    script = _FACTS_SCRIPT.replace("@FOLDER@", shlex.quote(folder)).replace("@PYTHON@", python)
    return facts_in(login.run(script), login.address.name, folder)


def facts_in(text: str, login: str, folder: str) -> ClusterFacts:
    """Parse the facts in a login node's answer.

    Raises:
        ProviderError: something that every pool needs is missing.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        mark, _, rest = line.partition(" ")
        name, _, value = rest.partition(" ")
        if mark == "skyward":
            found.setdefault(name, []).append(value.strip())

    def one(name: str) -> str:
        return (found.get(name) or [""])[0]

    if not one("slurm"):
        raise ProviderError(
            f"There is no sbatch on {login}: it is not a login node of a Slurm cluster, or Slurm is not in the PATH of "
            "commands there."
        )
    if not one("SlurmctldHost"):
        raise ProviderError(f"Slurm's controller does not answer {login}. `scontrol ping` there says more.")
    if not one("shared"):
        raise ProviderError(
            f"The folder {folder} cannot be created on {login}. Give sky.Slurm(folder=...) one on a disk that all "
            "nodes share."
        )
    system, _, machine = one("machine").partition(" ")
    if system != "Linux" or machine not in PLATFORMS:
        raise ProviderError(
            f"The login node {login} is {one('machine')}; packages are made for Linux on amd64 and arm64."
        )
    port = one("SlurmctldPort").partition("-")[0] or "6817"
    return ClusterFacts(
        login=login,
        version=one("slurm").rpartition(" ")[2],
        shared=one("shared"),
        platform=PLATFORMS[machine],
        libc=one("libc"),
        interpreter=one("python"),
        has_venv=bool(one("venv")),
        apptainer=one("apptainer").rpartition(" ")[2],
        controllers=tuple(f"{_address(host)}:{port}" for host in found["SlurmctldHost"]),
        partitions=_partitions(found.get("partition", [])),
    )


def _address(host: str) -> str:
    """Return the address in `host(address)`, or the host if there is none."""
    inner = re.fullmatch(r"[^(]+\(([^)]+)\)", host)
    return inner[1] if inner else host


def _partitions(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (line for line in lines if line.count("|") == 2):
        name, shown, gres = line.split("|", 2)
        for each in (name, "") if shown.endswith("*") else (name,):
            found[each] = f"{found.get(each, '')}\n{gres}"
    return found
