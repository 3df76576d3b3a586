"""The runs on a machine reached by SSH: one connection, whose session is a shell that answers questions.

The machine needs a POSIX shell and base64; sha256sum where files are fetched, the docker command where the driver is a
container. Nothing is installed there and nothing stays: the shell ends with the connection.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal

from skyward.errors import ConfigError, HostLostError, ProviderError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.records.run import RunRecord
from skyward.runs.place import CHUNK, COLLECTED, FileFacts, RunPlace
from skyward.ssh.connection import CONNECT_S, SshConnection, connect
from skyward.system import threading

ANSWER_S = 8.0  # of silence after which a machine counts as lost
_PATIENT_S = 600.0  # for a checksum of a large file, or a list of many
_MARK = "skyward-runs "
# One question per line: a word, a path in base64, and what the word needs. The answer is lines and then "end", or
# "failed". Paths and contents travel in base64, so that no name and no byte can be taken for anything else.
_SCRIPT = r"""
LC_ALL=C umask 077
runs=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs
say() { printf 'skyward-runs %s\n' "$*"; }
pack() { base64 | tr -d '\n'; }
sock=/var/run/docker.sock
case ${DOCKER_HOST:-} in unix://*) sock=${DOCKER_HOST#unix://} ;; esac
own=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock
if [ ! -S "$sock" ] && [ -S "$own" ]; then sock=$own; fi
engine() { docker -H "unix://$sock" "$@" 2>/dev/null; }
running() {  # the driver's container: of this name, and of this run
    engine ps -q --no-trunc --filter "name=^/$1\$" --filter "label=skyward.run=$2"
}
there() {  # whether a process still is the one that started at this time; its group is in $group
    read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
    since=$2
    set -- ${stat##*) }
    group=$3
    case $1 in [ZX]) return 1 ;; esac
    [ "${20}" = "$since" ]
}
for program in base64 tr head tail wc; do
    command -v $program >/dev/null || { say failed "there is no $program on its PATH"; exit; }
done
say ready
while read -r word packed a b c; do
    path=$runs/$(printf %s "$packed" | base64 -d; echo .)
    path=${path%.}
    case $word in
    records)
        for file in "$runs"/*/run.json; do [ -f "$file" ] && say "$(pack <"$file")"; done
        say end ;;
    segments)
        for file in "$path"/*.jsonl; do [ -f "$file" ] && say "${file##*/}" $(wc -c <"$file"); done
        say end ;;
    read)
        if [ -f "$path" ]; then say "+$(tail -c +$((a + 1)) "$path" | head -c "$b" | pack)"; fi
        say end ;;
    files)
        if [ -d "$path" ] && cd "$path"; then
            say "+$(find . -type f -exec sh -c 'for f; do printf "%s %s\0" "$(wc -c <"$f")" "$f"; done' sh {} + | pack)"
            cd /
        fi
        say end ;;
    checksum)
        if [ -f "$path" ]; then say $(sha256sum <"$path"); fi
        say end ;;
    process) if there "$a" "$b"; then say yes; else say no; fi; say end ;;
    container) if id=$(running "$a" "$b"); then say ${id:-no}; else say unknown; fi; say end ;;
    end-process)
        if there "$a" "$b"; then
            if [ "$c" = KILL ] && [ "$group" = "$a" ]; then kill -KILL "-$a"; else kill "-$c" "$a"; fi
        fi 2>/dev/null
        say end ;;
    end-container)
        if id=$(running "$a" "$b") && [ -n "$id" ]; then engine kill --signal "$c" "$id" >/dev/null; fi
        say end ;;
    collected)
        if [ -d "${path%/*}" ]; then : >"$path"; fi
        [ -z "$a" ] || rm -rf "/run/skyward/$(id -un)/pools/$a.run"  # the lease for which the machine waited
        say end ;;
    *) say failed "it does not know the word $word" ;;
    esac
done
"""


class SshRuns(RunPlace):
    """The runs of a user on a machine. It is connected when it is first asked, and after a loss when asked again.

    Attributes:
        host: the machine.

    Raises:
        HostLostError: it does not answer.
        ProviderError: it lacks a program that this takes.
    """

    is_here = False

    def __init__(self, host: SshHost) -> None:
        self.name, self.host = host.name, host
        self._lock = threading.Lock()  # one question at a time
        self._connection: SshConnection | None = None
        self._held = ExitStack()

    def records(self) -> Sequence[RunRecord]:
        found = []
        for line in self._ask("records"):
            try:
                found.append(RunRecord.parse(base64.b64decode(line)))
            except (ValueError, TypeError):
                continue  # of another version, or of a full disk: it does not hide the others
        return found

    def segments(self, path: str) -> Sequence[tuple[int, int]]:
        pairs = (line.split() for line in self._ask("segments", path))
        return sorted((int(name.removesuffix(".jsonl")), int(size)) for name, size in pairs)

    def read(self, path: str, offset: int = 0, limit: int = CHUNK) -> bytes | None:
        return self._unpacked(self._ask("read", path, str(offset), str(limit)))

    def files(self, path: str) -> Sequence[FileFacts]:
        data = self._unpacked(self._ask("files", path, timeout_s=_PATIENT_S)) or b""
        pairs = (each.decode("utf-8", "surrogateescape").split(" ", 1) for each in data.split(b"\0") if each)
        return sorted((FileFacts(name.removeprefix("./"), int(size)) for size, name in pairs), key=lambda f: f.path)

    def checksum(self, path: str) -> str:
        return next(self._ask("checksum", path, timeout_s=_PATIENT_S), "").partition(" ")[0]

    def is_alive(self, record: RunRecord) -> bool | None:
        if record.container is not None:
            said = next(self._ask("container", "", record.container, record.id), "unknown")
            return None if said == "unknown" else said != "no"
        pid, started = _process(record)
        return next(self._ask("process", "", pid, started)) == "yes" if pid else None

    def signal(self, record: RunRecord, name: Literal["TERM", "KILL"]) -> None:
        if record.container is not None:
            words = ("end-container", "", record.container, record.id, name)
        else:
            pid, started = _process(record)
            if not pid:
                raise ConfigError(f"The record of run {record.id} on {self.name} names no process. End it there.")
            words = ("end-process", "", pid, started, name)
        list(self._ask(*words, timeout_s=_PATIENT_S))

    def mark_collected(self, record: RunRecord) -> None:
        pool = [record.rented.pool] if record.rented is not None else []
        list(self._ask("collected", f"{record.id}/{COLLECTED}", *pool))

    def close(self) -> None:
        with self._lock:
            self._drop()

    @staticmethod
    def _unpacked(lines: Iterator[str]) -> bytes | None:
        line = next(lines, None)
        return None if line is None else base64.b64decode(line[1:])

    def _ask(self, word: str, path: str = "", *more: str, timeout_s: float = ANSWER_S) -> Iterator[str]:
        """The lines of an answer."""
        with self._lock:
            try:
                connection = self._connected()
                # "." stands for no path: the shell's `read` takes blanks together
                packed = base64.b64encode(path.encode("utf-8", "surrogateescape")).decode() or "Lg=="
                connection.send(" ".join((word, packed, *more)))
                lines = []
                while (line := self._hear(connection, timeout_s)) != "end":
                    if line.startswith("failed"):
                        raise ProviderError(f"{self.name} could not do `{word}`: {line[7:]}.")
                    lines.append(line)
                return iter(lines)
            except BaseException:
                self._drop()  # what is left of the answer must not be taken for that to another question
                raise

    def _connected(self) -> SshConnection:
        if self._connection is None:
            folder = self._held.enter_context(private_directory())
            self._connection = connection = connect(self.host, folder, "sh", "-c", _SCRIPT)
            said = self._hear(connection, 2 * CONNECT_S)
            if said != "ready":
                raise ProviderError(f"Runs on {self.name} cannot be read: {said.removeprefix('failed ')}.")
        return self._connection

    def _hear(self, connection: SshConnection, timeout_s: float) -> str:
        """The shell's next line, without its mark.

        Raises:
            HostLostError: none came in time.
        """
        said = connection.wait_marked(_MARK, timeout_s)
        if said is not None:
            return said
        why = connection.problem if connection.ended.is_set() else f"It said nothing for {timeout_s:g} s."
        raise HostLostError(f"{self.name} does not answer. {why}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.kill()
        self._held.close()


def _process(record: RunRecord) -> tuple[str, str]:
    """Number and start time of a run's process; two empty texts where the record names none."""
    pid, _, rest = record.process.partition(",")
    started = rest.partition(",")[0]
    return (pid, started) if pid.isdigit() and started.isdigit() else ("", "")
