"""The watchdog: a shell script that runs on a host as long as the pool, as the session of its SSH connection.

It reports the host's facts, creates the nodes' directories and finds free ports. When its client is lost, it ends the
pool's containers and removes what it created. The host needs only a POSIX shell and the docker command.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from secrets import token_hex

from skyward.errors import ProviderError, SkywardError
from skyward.model.ssh import SshHost
from skyward.ssh.connection import CONNECT_S, connect
from skyward.system import threading, time

WATCHDOG = "skyward.watchdog"  # label of every container that a watchdog ends; its value identifies the watchdog
_ANSWER_S = 30.0
_MARK = "skyward-watchdog "
_log = logging.getLogger(__name__)
# Nothing on the host changes before the line "go". The mark distinguishes the script's output from that of users' shell
# files.
# State is in a directory that only the user can access. In it each watchdog has `POOL.SLOT.ATTEMPT`, with the nodes'
# directories, `watch.N` for the shell that monitors it, `alive`, whose time is that at which the client's lease ends,
# and `left` while a pool waits for its next client. Only names and times are used, never the content of files: bash and
# ksh execute commands in text passed to `$((...))`, and dash exits on text that is not a number.
_SCRIPT = Path(__file__).with_name("watchdog.sh").read_text()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a host, as reported by its watchdog.

    Attributes:
        address: address at which the host was reached, which other hosts of the same network use too.
        machine: system and processor as reported by `uname`, such as "Linux x86_64".
        ahead_s: seconds that its clock is ahead of this machine's.
        socket: path of its engine's socket.
        engine: "there", "missing", or "forbidden" to this user.
        docker: path of the docker command; "" if there is none.
        user: user and group id of the SSH session.
        gpus: driver version and name of each NVIDIA GPU.
        toolkit: path of the NVIDIA Container Toolkit; "" if there is none.
    """

    address: str
    machine: str
    ahead_s: float
    socket: str
    engine: str
    docker: str
    user: tuple[int, int] = (0, 0)
    gpus: tuple[tuple[str, str], ...] = ()
    toolkit: str = ""


class Watchdog:
    """The client's side of a watchdog.

    Attributes:
        connection: the SSH connection whose session it is.
        label: value of the label `WATCHDOG` on the containers that it ends.
    """

    def __init__(self, host: SshHost, folder: Path, pool: str, lease_s: float, slot: int, attempt: int) -> None:
        """Start it; `facts` waits for its first answer.

        Args:
            host: its machine.
            folder: a private local directory for the sockets of the connection.
            pool: identifier of the pool.
            lease_s: seconds that it waits for a silent client.
            slot: number of the machine in the pool.
            attempt: number of earlier watchdogs of the pool there; `go` ends what they have left.
        """
        self._lock = threading.Lock()  # one request at a time
        self.label = f"{slot}.{attempt}"
        words = (pool, f"{lease_s:.0f}", str(slot), str(attempt))
        self.connection = connect(host, folder, "sh", "-c", _SCRIPT, "sh", *words)
        self.directory = PurePosixPath()

    def facts(self) -> Facts:
        """Wait for the facts about the host.

        Raises:
            ProviderError: the connection could not be established; the message gives the reason and what to do.
        """
        facts, gpus, ahead_s = defaultdict[str, str](str), [], 0
        deadline = time.monotonic() + 2 * CONNECT_S
        while (line := self.connection.wait_marked(_MARK, deadline - time.monotonic())) != "facts":
            if line is None:
                self.connection.kill()
                raise ProviderError(self.connection.problem)
            _, name, value = (text.strip() for text in f"{line}  ".split(" ", 2))
            if name == "clock":
                ahead_s = int(value) - int(time.time())
            elif name == "gpu":
                driver, _, model = value.partition(",")
                gpus.append((driver.strip(), model.strip()))
            else:
                facts[name] = value
        user, _, group = facts["user"].partition(" ")
        return Facts(
            address=facts["address"],
            machine=facts["machine"],
            ahead_s=ahead_s,
            socket=facts["socket"],
            engine=facts["engine"],
            docker=facts["docker"],
            user=(int(user), int(group)),
            gpus=tuple(gpus),
            toolkit=facts["toolkit"],
        )

    def go(self, *, adopts: bool = False) -> None:
        """Create the pool's directory, or take over the one that an earlier client of a named pool has created.

        This is the first change on the host.

        Raises:
            ProviderError: it failed.
        """
        said = self._ask("adopt" if adopts else "go")
        self.directory = PurePosixPath(said.removeprefix("ready "))

    def outlast(self) -> None:
        """Keep everything there until the lease expires if the client disappears."""
        self.connection.send("named")

    def leave(self, seconds: float) -> None:
        """Keep everything for the next client for `seconds`; if none comes, the watchdog ends it.

        Raises:
            ProviderError: it failed.
        """
        self._ask(f"leave {seconds:.0f}")
        self.connection.kill()

    def clear(self, pool: str) -> None:
        """Remove the directories that a client of a pool has left behind; called instead of `go`."""
        if pool.isalnum():  # as all identifiers are; labels of containers may contain anything
            self._ask(f"clear {pool}")

    def port(self) -> int:
        """Return a TCP port of the machine on which nothing listens, chosen at random."""
        return int(self._ask("port").removeprefix("port "))

    def free_bytes(self, path: str) -> int | None:
        """Return the number of free bytes on the file system of a path; None if unknown."""
        said = self._ask(f"disk {path}").removeprefix("disk").strip()
        return int(said) * 1024 if said.isdigit() else None

    def add(self, node: int, key: bytes, owner: int | None) -> PurePosixPath:
        """Create a directory for a node, with the node's key in a file that only the owner can read.

        Args:
            node: index of the node.
            key: its key.
            owner: number of the user that the node's programs run as. None if only the image defines it: the directory
                is then open to all users, and the pool's directory above it excludes others.
        """
        name = f"{node}.{token_hex(2)}"  # a replaced node leaves its own
        self._ask(f"node {name} {_escaped(key)} {'any' if owner is None else owner}")
        return self.directory / name

    def keep(self, content: bytes) -> Path:
        """Write a file with this content, which containers can mount until the pool ends; return its path."""
        name = hashlib.sha256(content).hexdigest()[:16]
        self._ask(f"keep {name} {_escaped(content)}")
        return Path(self.directory / name)

    def drop(self, directory: PurePath) -> None:
        """Remove a node's directory."""
        self._ask(f"drop {directory.name}")

    def notice(self, folder: str) -> str:
        """Return the cloud's notice on a rented machine, as its service has written it to a folder; "" for none."""
        return self._ask(f"notice {folder}").removeprefix("notice").strip()

    def beat(self) -> None:
        """Report that the client is alive."""
        self.connection.send("beat")

    def end(self) -> None:
        """Remove what the watchdog created, and end it. The containers must have been removed."""
        try:
            self._ask("end")
        except SkywardError as error:
            _log.debug("%s", error)  # it ended in another way, with the same result
        self.connection.kill()  # nothing uses it any longer

    def _ask(self, line: str) -> str:
        word = line.split()[0]
        with self._lock:
            self.connection.send(line)
            said = self.connection.wait_marked(_MARK, _ANSWER_S)
        host = self.connection.host.name
        if said is None:
            raise ProviderError(f"{host} did not answer when asked to {word}. {self.connection.problem}")
        if said.startswith("failed"):
            raise ProviderError(f"{host} could not do `{word}`: {said.removeprefix('failed').strip()}.")
        return said


def _escaped(content: bytes) -> str:
    """Return bytes escaped for the printf(1) of any shell."""
    return "".join(f"\\{byte:03o}" for byte in content)
