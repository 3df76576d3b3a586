"""The runs on a machine that is reached by SSH: their records and files, whether they still run, and how to end them.

All of it goes over one connection, whose session is a shell that answers requests. That needs a POSIX shell, base64,
flock and stat there. Nothing is installed and nothing remains: the shell ends with the connection.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

from filelock import FileLock

from skyward.errors import ConfigError, HostLostError, ProviderError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.records.run import DOWN_FILE, RUN_FILE, THERE_FILE, WRITTEN_FOLDER, RunFacts, RunRecord
from skyward.ssh.connection import CONNECT_S, SshConnection, connect
from skyward.system import time

JOURNALS, FOLDERS = ("output", "nodes"), ("saved", "files", WRITTEN_FOLDER)  # parts of a run
ANSWER_S = 8.0  # of silence after which a machine counts as lost
PATIENCE_S = 60.0  # how long requests are repeated once `outlast` was called
_RETRY_S = 1.0
_CHUNK = 1024 * 1024  # maximum bytes of a file per request
_PATIENT_S = 600.0  # for a long list of files
_MARK = "skyward-runs "
# One request per line: a word, a path in base64, and the word's arguments. The answer is lines followed by "end", or
# "failed". Paths and contents are sent in base64, so that no name or byte can be misinterpreted.
_SCRIPT = r"""
LC_ALL=C umask 077
runs=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs
say() { printf 'skyward-runs %s\n' "$*"; }
pack() { base64 | tr -d '\n'; }
held() { [ -f "$1/lock" ] && ! flock -n -s "$1/lock" true; }
facts() {  # whether it runs is asked first: a run that ends in between has recorded that
    if held "$1"; then alive=yes; else alive=no; fi
    [ ! -f "$1/run.jsonl" ] || say "$alive $(pack <"$1/run.jsonl")"
}
for program in base64 tr head tail stat flock; do
    command -v $program >/dev/null || { say failed "there is no $program on its PATH"; exit; }
done
say ready
while read -r word packed a b; do
    path=$runs/$(printf %s "$packed" | base64 -d; echo .)
    path=${path%.}
    case $word in
    names) for run in "$runs"/*/run.jsonl; do run=${run%/*}; [ ! -d "$run" ] || say "${run##*/}"; done ;;
    runs) for run in "$runs"/*; do if [ "$a" = ended ] || held "$run"; then facts "$run"; fi; done ;;
    state) if held "$path"; then say yes; elif [ -f "$path/run.jsonl" ]; then say no; fi ;;
    read) if [ -f "$path" ]; then say "+$(tail -c +$((a + 1)) "$path" | head -c "$b" | pack)"; fi ;;
    files)
        if [ -d "$path" ] && cd "$path"; then
            say "+$(find . -type f -exec sh -c \
                'for f; do printf "%s %s\0" "$(stat -c "%s %Y" "$f")" "$f"; done' sh {} + | pack)"
            cd /
        fi ;;
    down) if [ -d "${path%/*}" ]; then : >"$path"; fi ;;
    collected)  # the lease is that for which a rented machine waited
        if [ -f "$path" ]; then printf '{"event":"collected"}\n' >>"$path"; fi
        [ -z "$a" ] || rm -rf "/run/skyward/$(id -un)/pools/$a.run" ;;
    *) say failed "it does not know the word $word" ;;
    esac
    say end
done
"""


class RunsThere:
    """The runs of a user on a machine. It connects on the first request, and after a loss on the next one.

    Attributes:
        name: of the machine, as people write it.
        host: the machine.

    Raises:
        HostLostError: it does not answer.
        ProviderError: it lacks a required program.
    """

    def __init__(self, host: SshHost) -> None:
        self.name, self.host = host.name, host
        self._connection: SshConnection | None = None
        self._held = ExitStack()
        self._run = ""
        self._say: Callable[[str], None] | None = None

    def outlast(self, run: str, say: Callable[[str], None]) -> None:
        """From now on repeat requests that are not answered, for a minute; `say` receives notes on that.

        Args:
            run: the run in question, for the notes.
            say: receives a note when the machine does not answer, and when it answers again.
        """
        self._run, self._say = run, say

    def names(self) -> Sequence[str]:
        """Return the names of all runs that are recorded there."""
        return self._ask("names")

    def runs(self, *, ended: bool) -> list[RunFacts]:
        """Return what is known of runs there: those that run, or all."""
        lines = self._ask("runs", "", "ended" if ended else "running", timeout_s=_PATIENT_S)
        answers = (line.partition(" ") for line in lines)
        found = [RunFacts.parse(base64.b64decode(packed), is_alive=alive == "yes") for alive, _, packed in answers]
        return [each for each in found if each is not None]

    def pull(self, run: str, folder: Path, parts: Sequence[str]) -> bool:
        """Fetch what is new of a run's record and of parts of it; return whether the run is alive.

        Args:
            run: its name.
            folder: the directory for it here.
            parts: which of JOURNALS and FOLDERS.

        Raises:
            ProviderError: there is no such run any more, or a name leads out of the directory.
            ConfigError: it cannot be written here.
        """
        alive = self._ask("state", run)  # asked first: a run that ends in between has recorded that
        if not alive:
            raise ProviderError(f"{self.name} has no record of run {run} any more: it was removed there.")
        try:
            with FileLock(folder / ".pull.lock", mode=0o600):
                self._append(f"{run}/{RUN_FILE}", folder / THERE_FILE)
                for part in parts:
                    self._pull_part(f"{run}/{part}", folder / part)
        except OSError as error:
            raise ConfigError(f"What the run has written cannot be put into {folder}: {error}.") from error
        return alive[0] == "yes"

    def _pull_part(self, source: str, target: Path) -> None:
        for name, size, written in self._files(source):
            own = target.joinpath(*PurePosixPath(name).parts)
            if name.startswith("/") or ".." in own.parts:
                raise ProviderError(f"{self.name} names a file {name!r}, which would lie outside of {target}.")
            own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if target.name in JOURNALS:
                self._append(f"{source}/{name}", own)
            elif not own.is_file() or (own.stat().st_size, int(own.stat().st_mtime)) != (size, written):
                draft = target.with_name(".part")
                draft.unlink(missing_ok=True)
                self._append(f"{source}/{name}", draft)
                os.utime(draft, (written, written))
                draft.replace(own)

    def _append(self, source: str, own: Path) -> None:
        """Append the rest of a file to its copy."""
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            while data := self._read(source, file.tell()):
                file.write(data)

    def _read(self, path: str, offset: int) -> bytes:
        answer = self._ask("read", path, str(offset), str(_CHUNK))
        return b"".join(base64.b64decode(line[1:]) for line in answer)

    def _files(self, path: str) -> Iterator[tuple[str, int, int]]:
        """Yield all regular files below a directory: path, size, and when it was written."""
        data = b"".join(base64.b64decode(line[1:]) for line in self._ask("files", path, timeout_s=_PATIENT_S))
        for each in filter(None, data.split(b"\0")):
            size, written, name = each.decode("utf-8", "surrogateescape").split(" ", 2)
            yield name.removeprefix("./"), int(size), int(written)

    def ask_down(self, run: str) -> None:
        """Ask a run to end; it is killed if it does not in time. Nothing happens if it has ended."""
        self._ask("down", f"{run}/{DOWN_FILE}")

    def mark_collected(self, record: RunRecord) -> None:
        """Record that everything of a run was fetched; a rented machine then ends."""
        pool = [record.rented.pool] if record.rented is not None else []
        self._ask("collected", f"{record.id}/{RUN_FILE}", *pool)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._drop()

    def _ask(self, word: str, path: str = "", *more: str, timeout_s: float = ANSWER_S) -> Sequence[str]:
        """Return the lines of an answer.

        Raises:
            HostLostError: the machine does not answer, or has not for too long.
        """
        # "." stands for no path: the shell's `read` merges blanks
        packed = base64.b64encode(path.encode("utf-8", "surrogateescape")).decode() or "Lg=="
        since = None
        while True:
            try:
                answer = self._ask_once(" ".join((word, packed, *more)), timeout_s)
            except HostLostError as error:
                now = time.monotonic()
                if self._say is None:
                    raise
                if since is None:
                    since = now
                    self._say(f"{error} Run {self._run} may still run there; trying to reach it again.")
                elif now - since > PATIENCE_S:
                    raise HostLostError(
                        f"{self.name} has not answered for {now - since:.0f} s. Run {self._run} may still run there, "
                        f"or have ended with the machine; the same command tries again. {error}"
                    ) from error
                time.sleep(_RETRY_S)
            else:
                if since is not None and self._say is not None:
                    self._say(f"{self.name} answers again.")
                return answer

    def _ask_once(self, request: str, timeout_s: float) -> Sequence[str]:
        try:
            connection = self._connected()
            connection.send(request)
            lines = []
            while (line := self._hear(connection, timeout_s)) != "end":
                if line.startswith("failed"):
                    raise ProviderError(f"{self.name} could not do `{request}`: {line[7:]}.")
                lines.append(line)
            return lines
        except BaseException:
            self._drop()  # the rest of the answer must not be taken for the answer to another request
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
        """Return the shell's next line, without its mark.

        Raises:
            HostLostError: none came in time.
        """
        said = connection.wait_marked(_MARK, timeout_s)
        if said is not None:
            return said
        why = connection.problem if connection.ended.is_set() else f"It sent nothing for {timeout_s:g} s."
        raise HostLostError(f"{self.name} does not answer. {why}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.kill()
        self._held.close()
