"""The keeper: a shell script that stays on a host for as long as a pool does, at the other end of its SSH connection.

It tells what there is to know of the host, makes the directories of nodes, claims ports, and when its client is gone
ends the pool's containers and removes what it made. A host needs a POSIX shell and the docker command, nothing else.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from skyward.engine.ssh import CONNECT_S, SshConnection
from skyward.errors import ProviderError, SkywardError
from skyward.model.ssh import SshHost
from skyward.system import threading, time

KEEPER = "skyward.keeper"  # on every container that a keeper ends
_ANSWER_S = 30.0
_MARK = "skyward-keeper "
_log = logging.getLogger(__name__)
# Nothing on the host is changed before the line "go". What people's shell files print is told apart by the mark.
# Directories: one per pool, in it one per node, and a file `alive` whose age is the client's silence.
_SCRIPT = r"""
pool=$1 lease=$2 dir=/tmp/.skyward-$1
say() { printf 'skyward-keeper %s\n' "$*"; }
engine() { docker -H "unix://$sock" "$@" 2>/dev/null; }
sock=/var/run/docker.sock
case ${DOCKER_HOST:-} in unix://*) sock=${DOCKER_HOST#unix://} ;; esac
own=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock
if [ ! -S "$sock" ] && [ -S "$own" ]; then sock=$own; fi
set -- ${SSH_CONNECTION:-}
say fact clock "$(date +%s)"
say fact address "${3:-}"
say fact machine "$(uname -s) $(uname -m)"
say fact socket "$sock"
if [ ! -S "$sock" ]; then say fact engine missing
elif [ ! -r "$sock" ] || [ ! -w "$sock" ]; then say fact engine forbidden
else say fact engine there; fi
say fact docker "$(command -v docker)"
nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null | while read -r gpu; do
    say fact gpu "$gpu"
done
say fact toolkit "$(command -v nvidia-container-runtime-hook || command -v nvidia-ctk)"
if daemon=$(cat "${sock%.sock}.pid" 2>/dev/null); then
    say fact status "$(grep CapEff "/proc/$daemon/status" 2>/dev/null)"
    while read -r limit; do say fact limit "$limit"; done 2>/dev/null <"/proc/$daemon/limits"
fi
say facts

stale() {  # pools of this user whose keeper was killed, and ports of pools that are gone
    now=$(date +%s)
    for alive in /tmp/.skyward-*/alive; do
        other=${alive%/alive}
        [ -O "$alive" ] || continue
        seen=$(date -r "$alive" +%s) && limit=$(cat "$other/lease") || continue
        [ $((now - seen)) -gt $((limit + 30)) ] && clear_pool "${other#/tmp/.skyward-}"
    done
    for port in /tmp/.skyward-port-*/pool; do
        [ -O "$port" ] && [ ! -d "/tmp/.skyward-$(cat "$port")" ] && rm -rf "${port%/pool}"
    done
}
clear_pool() {  # until the engine has none of the pool's containers, also none that was just being made
    tries=0 clean=0
    while [ $clean -lt 2 ] && [ $tries -lt 300 ]; do
        if ids=$(engine ps -aq --no-trunc --filter "label=skyward.pool=$1" --filter label=skyward.keeper); then
            if [ -n "$ids" ]; then clean=0; engine rm -f -v $ids >/dev/null; continue; fi
            clean=$((clean + 1))
        fi
        tries=$((tries + 1))
        sleep 1
    done
    clear_files "$1"
}
clear_files() {
    for port in /tmp/.skyward-port-*/pool; do
        [ -O "$port" ] && [ "$(cat "$port")" = "$1" ] && rm -rf "${port%/pool}"
    done
    rm -rf "/tmp/.skyward-$1"
}
watch() {  # a connection that broke without a word keeps the keeper's input open
    while sleep 2; do
        [ -d "$dir" ] || exit 0
        seen=$(date -r "$dir/alive" +%s) && limit=$(cat "$dir/lease") || exit 0
        if [ $(($(date +%s) - seen)) -gt "$limit" ]; then clear_pool "$pool"; hang_up; kill $$; exit 0; fi
    done
}
hang_up() {  # forwards in the middle of something would keep the connection of a dead client
    [ "$(cut -d' ' -f4 /proc/$$/stat)" = "$PPID" ] || return
    case $(cat "/proc/$PPID/comm") in sshd*) kill "$PPID" ;; esac
}
listening() {  # whether somebody listens at a port, given in hexadecimal
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ near _ state _; do
        case $near:$state in *:"$1":0A) echo yes; break ;; esac
    done
}
claim() {
    tries=0
    while [ $tries -lt 200 ]; do
        tries=$((tries + 1))
        port=$((10000 + $(od -An -N2 -tu2 /dev/urandom) % 20000))
        [ "$(listening "$(printf %04X $port)")" ] && continue
        mkdir "/tmp/.skyward-port-$port" 2>/dev/null || continue
        echo "$pool" >"/tmp/.skyward-port-$port/pool"
        say port "$port"
        return
    done
    say failed no free port was found
}

disk() { say disk "$(df -Pk "$1" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })"; }

while read -r word a && [ "$word" = disk ]; do disk "$a"; done
[ "$word" = go ] || exit 0
umask 077
trap '' HUP PIPE
stale 2>/dev/null
if why=$(mkdir "$dir" 2>&1); then :; else say failed "$why"; exit 1; fi
echo "$lease" >"$dir/lease"
: >"$dir/alive"
watch </dev/null >/dev/null 2>&1 &
say ready "$dir"
while read -r word a b; do
    case $word in
    beat) : >"$dir/alive" ;;
    lease) echo "$a" >"$dir/lease" ;;
    port) claim ;;
    disk) disk "$a" ;;
    node) if why=$(mkdir "$dir/$a" 2>&1 && printf "$b" >"$dir/$a/key"); then say made; else say failed "$why"; fi ;;
    drop) rm -rf "$dir/$a"; say dropped ;;
    end) clear_files "$pool"; say ended; exit 0 ;;
    esac
done
clear_pool "$pool"
hang_up
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a keeper says of its host.

    Attributes:
        address: at which the host was reached; other hosts of the same network reach it there as well.
        machine: system and processor as `uname` gives them, such as "Linux x86_64".
        ahead_s: seconds by which its clock is ahead of this machine's.
        socket: path of its engine's socket.
        engine: "there", "missing", or "forbidden" to this user.
        docker: path of the docker command; "" without one.
        gpus: driver version and name of each NVIDIA GPU.
        toolkit: path of the NVIDIA Container Toolkit; "" without one.
        status: what the kernel says of the engine's process: its capabilities; "" where that is not known.
        limits: and its limits.
    """

    address: str
    machine: str
    ahead_s: float
    socket: str
    engine: str
    docker: str
    gpus: tuple[tuple[str, str], ...] = ()
    toolkit: str = ""
    status: str = ""
    limits: str = ""


@dataclass(slots=True)
class _Talk:
    """One question at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Keeper:
    """The client's end of a keeper.

    Attributes:
        connection: the SSH connection whose session it is.
    """

    def __init__(self, host: SshHost, folder: Path, pool: str, lease_s: float) -> None:
        """Start it; `facts` waits for its first words."""
        self._talk = _Talk()
        self.connection = SshConnection(host, folder, "sh", "-c", _SCRIPT, "sh", pool, f"{lease_s:.0f}")
        self.directory = PurePosixPath()

    def facts(self) -> Facts:
        """What it says of the host.

        Raises:
            ProviderError: the connection did not come about; says why, and what to do.
        """
        lines: dict[str, list[str]] = defaultdict(list)
        deadline = time.monotonic() + 2 * CONNECT_S
        while (line := self._hear(deadline - time.monotonic())) != "facts":
            if line is None:
                self.connection.kill()
                raise ProviderError(self.connection.problem)
            _, name, value = f"{line}  ".split(" ", 2)
            lines[name].append(value.strip())
            if name == "clock":
                lines["ahead"].append(str(int(value) - int(time.time())))
        return _facts(lines)

    def go(self) -> None:
        """Let it make the pool's directory: the first change on the host.

        Raises:
            ProviderError: it cannot.
        """
        said = self._ask("go")
        self.directory = PurePosixPath(said.removeprefix("ready "))

    def port(self) -> int:
        """A TCP port of the host that nobody listens at and that is no other pool's while this one lives."""
        return int(self._ask("port").removeprefix("port "))

    def free_bytes(self, path: str) -> int | None:
        """Free bytes of the file system that a path is on; None if the host does not say."""
        said = self._ask(f"disk {path}").removeprefix("disk").strip()
        return int(said) * 1024 if said.isdigit() else None

    def add(self, node: int, key: bytes) -> PurePosixPath:
        """A fresh directory for a node, with the node's key in a file that only the owner can read."""
        with self._talk.lock:
            self._talk.made[str(node)] += 1
            again = self._talk.made[str(node)] - 1
        name = f"{node}.{again}" if again else str(node)  # a replaced node leaves its own
        self._ask(f"node {name} {''.join(f'{chr(92)}{byte:03o}' for byte in key)}")
        return self.directory / name

    def drop(self, directory: PurePosixPath) -> None:
        """Remove a node's directory."""
        self._ask(f"drop {directory.name}")

    def lease(self, seconds: float) -> None:
        """How long it waits for a silent client."""
        self.connection.send(f"lease {seconds:.0f}")

    def beat(self) -> None:
        """Tell it that the client lives."""
        self.connection.send("beat")

    def end(self) -> None:
        """Have it remove what it made and end; the containers are gone already."""
        try:
            self._ask("end")
        except SkywardError as error:
            _log.debug("%s", error)  # it ended in another way, which comes to the same
        self.connection.kill()  # nothing is left that it could be needed for

    def _ask(self, line: str) -> str:
        word = line.split()[0]
        with self._talk.lock:
            self.connection.send(line)
            said = self._hear(_ANSWER_S)
        host = self.connection.host.name
        if said is None:
            raise ProviderError(f"{host} did not answer when asked to {word}. {self.connection.problem}")
        if said.startswith("failed"):
            raise ProviderError(f"{host} could not do `{word}`: {said.removeprefix('failed').strip()}.")
        return said

    def _hear(self, timeout_s: float) -> str | None:
        """Its next line, without the mark; None at the end of the connection or of the time."""
        deadline = time.monotonic() + timeout_s
        while (line := self.connection.wait_line(max(0.0, deadline - time.monotonic()))) is not None:
            before, mark, said = line.partition(_MARK)
            if mark and not before:
                return said
        return None


def _facts(lines: Mapping[str, Sequence[str]]) -> Facts:
    def one(name: str) -> str:
        return (lines.get(name) or [""])[0]

    gpus = [gpu.partition(",")[::2] for gpu in lines.get("gpu", ())]
    return Facts(
        address=one("address"),
        machine=one("machine"),
        ahead_s=float(one("ahead") or 0),
        socket=one("socket"),
        engine=one("engine"),
        docker=one("docker"),
        gpus=tuple((driver.strip(), name.strip()) for driver, name in gpus),
        toolkit=one("toolkit"),
        status=one("status"),
        limits="\n".join(lines.get("limit", ())),
    )
