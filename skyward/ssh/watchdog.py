"""The watchdog: a shell script that runs on a host as long as the pool, as the session of its SSH connection.

It reports the host's facts, creates the nodes' directories and claims ports. When its client is lost, it ends the
pool's containers and removes what it created. The host needs only a POSIX shell and the docker command.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
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
# directories, `port.N` for each claimed port, `lease.N` for the lease in seconds, `watch.N` for the shell that monitors
# it, `alive`, whose age is the client's silence, and `left` while a pool waits for its next client. Only names and ages
# are used, never the content of files: bash and ksh execute commands in text passed to `$((...))`, and dash exits on
# text that is not a number.
_SCRIPT = r"""
LC_ALL=C pool=$1 lease=$2 slot=$3 attempt=$4 sh=$$
say() { printf 'skyward-watchdog %s\n' "$*"; }
engine() { docker -H "unix://$sock" "$@" 2>/dev/null; }
number() { case $1 in '' | 0?* | *[!0-9]* | ??????????*) return 1 ;; esac; }
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
say fact user "$(id -u) $(id -g)"
nvidia-smi --query-gpu=driver_version,name --format=csv,noheader 2>/dev/null | while read -r gpu; do
    say fact gpu "$gpu"
done
say fact toolkit "$(command -v nvidia-container-runtime-hook || command -v nvidia-ctk)"
pidfile=${sock%.sock}.pid
if [ -f "$pidfile" ] && daemon=$(head -c 20 "$pidfile" 2>/dev/null) && number "$daemon"; then
    say fact status "$(grep CapEff "/proc/$daemon/status" 2>/dev/null)"
    while read -r limit; do say fact limit "$limit"; done 2>/dev/null <"/proc/$daemon/limits"
fi
say facts

mine() {  # whether a path is a directory of this user and no link, in which nobody else can write
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return 1
    listed=$(ls -ldn "$1") || return 1
    case $listed in
    d????-??-*) ;;
    d???????-?+*) return 1 ;;
    d???????-*) set -- $listed; [ "$4" = "$(id -g)" ] && [ "$(id -gn)" = "$(id -un)" ] ;;  # a group of one user
    *) return 1 ;;
    esac
}
settle() {  # find or make the directory for state; a machine of a cloud has one that its guard made
    for base in "/run/skyward/$(id -un)" "${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/skyward}" "${HOME:+$HOME/.cache/skyward}"
    do
        case $base in /run/skyward/*) [ -d "$base" ] || continue ;; /*) ;; *) continue ;; esac
        above=${base%/*}
        [ -d "$above" ] || mkdir "$above" 2>/dev/null
        above=$(cd -P "$above" 2>/dev/null && pwd -P) && base=$above/${base##*/}
        case $base in *[[:space:]\"\'\\%:\$\`]*) continue ;; esac
        [ ${#base} -le 66 ] || continue  # the paths of sockets below it must not have more than 107 characters
        [ "$above" = /run/skyward ] || mine "$above" || continue
        mkdir "$base" 2>/dev/null
        mine "$base" || continue
        pools=$base/pools
        mkdir "$pools" 2>/dev/null
        mine "$pools" || continue
        case $listed in drwx------*) return 0 ;; esac
    done
    return 1
}
lease_of() {  # the lease that a directory notes
    longest=
    for noted in "$1"/lease.*; do
        noted=${noted##*/lease.}
        number "$noted" || continue
        if [ -z "$longest" ] || [ "$noted" -gt "$longest" ]; then longest=$noted; fi
    done
    [ "$longest" ] && echo "$longest"
}
silence() {  # seconds since the client of a directory was heard
    heard=$(date -r "$1/alive" +%s) && echo $(($(date +%s) - heard))
}
stale() {  # pools of this user whose watchdog was killed
    for other in "$pools"/*; do
        case ${other##*/} in *[!0-9A-Za-z.]* | *.*.*.*) continue ;; esac
        limit=$(lease_of "$other") && silent=$(silence "$other") || continue
        [ $((silent - 30)) -gt "$limit" ] && clear_pool "$other"
    done
}
containers() {  # of one attempt of a pool
    named=${1##*/}
    engine ps -aq --no-trunc --filter "label=skyward.pool=${named%%.*}" --filter "label=skyward.watchdog=${named#*.}"
}
clear_pool() {  # until the engine has none of its containers, also none that was just being made
    tries=0 clean=0
    while [ $clean -lt 2 ] && [ $tries -lt 300 ]; do
        if ids=$(containers "$1"); then
            if [ -n "$ids" ]; then clean=0; engine rm -f -v $ids >/dev/null; continue; fi
            clean=$((clean + 1))
        fi
        tries=$((tries + 1))
        sleep 1
    done
    rm -rf "$1"
}
supersede() {  # end what earlier attempts of this pool left here; their watchdogs end when their directory is gone
    for other in "$pools/$pool.$slot".*; do
        number "${other##*.}" && [ "${other##*.}" -lt "$attempt" ] || continue
        tries=0
        while ids=$(containers "$other") && [ -n "$ids" ] && [ $tries -lt 20 ]; do
            engine rm -f -v $ids >/dev/null || sleep 1
            tries=$((tries + 1))
        done
        rm -rf "$other"
    done
}
watch() {  # a connection that broke without a word keeps the watchdog's input open
    while sleep 2 && [ -e "$dir/watch.$sh" ] && limit=$(lease_of "$dir") && silent=$(silence "$dir"); do
        if [ "$silent" -gt "$limit" ]; then clear_pool "$dir"; fi
    done
    hang_up && kill $sh
}
hang_up() {  # forwards in the middle of something would keep the connection of a dead client
    [ "$(cut -d' ' -f4 /proc/$sh/stat)" = "$PPID" ] || return
    case $(cat "/proc/$PPID/comm") in sshd*) kill "$PPID" ;; esac
}
taken() {  # whether anybody listens at a port or holds its namesake of UDP, as clients on this machine do for theirs
    cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null |
        grep -q ":$(printf %04X "$1") [0-9A-F]*:[0-9A-F]* 0[7A] "
}
claim() {  # a claim is made, and then stands if it is the only one
    tries=0
    while [ $tries -lt 200 ]; do
        tries=$((tries + 1))
        set -- $(od -An -N2 -tu2 /dev/urandom)
        number "$1" || break
        port=$((10000 + $1 % 20000))
        taken $port && continue
        mkdir "$dir/port.$port" 2>/dev/null || continue
        set -- "$pools"/*/"port.$port"
        if [ $# -eq 1 ]; then say port $port; return; fi
        rmdir "$dir/port.$port"
    done
    say failed no free port was found
}

share() {  # with a container, into which a directory is mounted: with one user, or any; nobody else gets past $dir
    case $2 in
    any) chmod 777 "$1" && chmod 644 "$1/key" ;;
    "$(id -u)") : ;;
    *) chown "$2" "$1" "$1/key" ;;
    esac
}
disk() { say disk "$(df -Pk "$1" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })"; }

while read -r word a; do
    case $word in
    disk) disk "$a" ;;
    clear) settle 2>/dev/null && for kept in "$pools/$a".*/left; do [ -e "$kept" ] && rm -rf "${kept%/left}"; done
        say cleared ;;
    *) break ;;
    esac
done
case $word in go | adopt) ;; *) exit 0 ;; esac
umask 077
trap '' HUP PIPE
if ! settle 2>/dev/null; then
    say failed 'neither $XDG_RUNTIME_DIR nor ~/.cache can hold a directory "skyward" that is this user'\''s alone.' \
        'It must belong to the user, be no link, be writable by nobody else, and have a short path without odd signs'
    exit 1
fi
dir=$pools/$pool.$slot.$attempt
[ "$word" = adopt ] && [ -d "$dir" ] && : >"$dir/alive"
stale </dev/null >/dev/null 2>&1 &
if [ "$word" != adopt ] || [ ! -d "$dir" ]; then  # a client that finds nothing to take over begins anew
    supersede 2>/dev/null
    if why=$(mkdir "$dir" 2>&1); then :; else say failed "$why"; exit 1; fi
fi
for other in "$pools/$pool".*; do  # after that, since two watchdogs may be here at the same time
    [ -d "$other" ] && [ "$other" != "$dir" ] || continue
    say failed "File exists: $other, so this machine is in the pool already, under another name"
    rmdir "$dir"
    exit 1
done
lease() { : >"$dir/lease.$1"; for old in "$dir"/lease.*; do [ "${old##*.}" = "$1" ] || rm -f "$old"; done; }
: >"$dir/alive"
lease "$lease"
rm -f "$dir"/watch.* "$dir/left"  # those of clients before end
: >"$dir/watch.$sh"
kept=
watch </dev/null >/dev/null 2>&1 &
say ready "$dir"
while read -r word a b c; do
    case $word in
    beat) : >"$dir/alive" ;;
    lease) lease "$a" ;;
    until)
        at=$(($(cut -d. -f1 /proc/uptime) + a)) && : >"$dir/until.$at"
        for old in "$dir"/until.*; do [ "${old##*.}" = "$at" ] || rm -f "$old"; done ;;
    named) kept=1 ;;
    leave) lease "$a"; : >"$dir/alive"; rmdir "$dir"/port.* 2>/dev/null; : >"$dir/left"; say left; exit 0 ;;
    port) claim ;;
    free) rmdir "$dir/port.$a"; say freed ;;
    disk) disk "$a" ;;
    node)
        if why=$(mkdir "$dir/$a" 2>&1 && printf "$b" >"$dir/$a/key" && share "$dir/$a" "$c" 2>&1)
        then say made; else say failed "$why"; fi ;;
    keep)
        if why=$(printf "$b" 2>&1 >"$dir/$a" && chmod 644 "$dir/$a"); then say kept; else say failed "$why"; fi ;;
    drop) rm -rf "$dir/$a"; say dropped ;;
    end) rm -rf "$dir"; say ended; exit 0 ;;
    esac
done
[ "$kept" ] && exit 0  # the next client may come; else `watch` goes on, and clears it after the lease
clear_pool "$dir"
hang_up
"""


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
        status: the kernel's status of the engine's process, with its capabilities; "" if unknown.
        limits: the resource limits of that process.
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
    status: str = ""
    limits: str = ""


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
        self._made: dict[int, int] = defaultdict(int)  # number of directories created for each node
        self._suffix = ""
        self.label = f"{slot}.{attempt}"
        words = (pool, f"{lease_s:.0f}", str(slot), str(attempt))
        self.connection = connect(host, folder, "sh", "-c", _SCRIPT, "sh", *words)
        self.directory = PurePosixPath()

    def facts(self) -> Facts:
        """Wait for the facts about the host.

        Raises:
            ProviderError: the connection could not be established; the message gives the reason and what to do.
        """
        lines: dict[str, list[str]] = defaultdict(list)
        deadline = time.monotonic() + 2 * CONNECT_S
        while (line := self.connection.wait_marked(_MARK, deadline - time.monotonic())) != "facts":
            if line is None:
                self.connection.kill()
                raise ProviderError(self.connection.problem)
            _, name, value = f"{line}  ".split(" ", 2)
            lines[name].append(value.strip())
            if name == "clock":
                lines["ahead"].append(str(int(value) - int(time.time())))
        return _facts(lines)

    def go(self, *, adopts: bool = False) -> None:
        """Create the pool's directory, or take over the one that an earlier client of a named pool has created.

        This is the first change on the host.

        Raises:
            ProviderError: it failed.
        """
        said = self._ask("adopt" if adopts else "go")
        self.directory = PurePosixPath(said.removeprefix("ready "))
        self._suffix = f".{token_hex(2)}" if adopts else ""

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
        """Claim a TCP port on which nothing listens; this user's other pools do not get it until it is released."""
        return int(self._ask("port").removeprefix("port "))

    def free_port(self, port: int) -> None:
        """Release a port claimed by `port`."""
        self._ask(f"free {port}")

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
        with self._lock:
            again = self._made[node]
            self._made[node] += 1
        name = f"{node}.{again}{self._suffix}" if again or self._suffix else str(node)  # a replaced node leaves its own
        self._ask(f"node {name} {_escaped(key)} {'any' if owner is None else owner}")
        return self.directory / name

    def keep(self, content: bytes) -> Path:
        """Write a file with this content, which containers can mount until the pool ends; return its path."""
        name = hashlib.sha256(content).hexdigest()[:16]
        self._ask(f"keep {name} {_escaped(content)}")
        return Path(self.directory / name)

    def drop(self, directory: PurePosixPath) -> None:
        """Remove a node's directory."""
        self._ask(f"drop {directory.name}")

    def lease(self, seconds: float) -> None:
        """Set how many seconds it waits for a silent client."""
        self.connection.send(f"lease {seconds:.0f}")

    def until(self, seconds: float) -> None:
        """Record, for the guard of a rented machine, in how many seconds the pool's budget is spent."""
        self.connection.send(f"until {seconds:.0f}")

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


def _facts(lines: Mapping[str, Sequence[str]]) -> Facts:
    def one(name: str) -> str:
        return (lines.get(name) or [""])[0]

    user, _, group = one("user").partition(" ")
    gpus = [gpu.partition(",")[::2] for gpu in lines.get("gpu", ())]
    return Facts(
        address=one("address"),
        machine=one("machine"),
        ahead_s=float(one("ahead") or 0),
        socket=one("socket"),
        engine=one("engine"),
        docker=one("docker"),
        user=(int(user or 0), int(group or 0)),
        gpus=tuple((driver.strip(), name.strip()) for driver, name in gpus),
        toolkit=one("toolkit"),
        status=one("status"),
        limits="\n".join(lines.get("limit", ())),
    )
