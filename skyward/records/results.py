"""A file of computed results: an SQLite database to which each result is added as it arrives.

If the writer is killed, at most the result being written is lost. After a power failure, up to a second's results may
also be missing. One writer uses the file at a time.

Readers unpickle the results, so the file must belong to this user, and nobody else may access it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from skyward.errors import ConfigError, JournalError
from skyward.records.run import check_kept
from skyward.system import time

_APPLICATION = 0x736B7972  # marks a database as ours
_SYNC_S = 1.0  # how often written data is forced to disk
_CHUNK = 1 << 28  # bytes in one row; SQLite's limit is a gigabyte
_OPEN = f"""
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS chunks (key TEXT, part INTEGER, data BLOB);
CREATE INDEX IF NOT EXISTS keys ON chunks (key);
PRAGMA application_id = {_APPLICATION};
COMMIT;
"""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultKey:
    """The identity of the call that a result belongs to.

    Attributes:
        function: its name, for display.
        code: digest of its code and of everything that the code refers to.
        image: identity of the image it ran in.
        arguments: digest of its arguments.
        occurrence: number of earlier calls with the same arguments; identical calls have one result each.
    """

    function: str
    code: str
    image: str
    arguments: str
    occurrence: int = 0


class ResultJournal:
    """The journal of one writer. As a context manager it closes the file at the end, so that others can use it.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file, creating it if necessary.

        Raises:
            ConfigError: it is another kind of file, belongs to another user, is accessible to others, or is in use by
            another process.
            JournalError: it cannot be opened or read, or is damaged.
        """
        import sqlite3  # few programs have journals

        self.path = Path(path)
        self._synced = time.monotonic()
        self._check()
        with self._explained("opened"):
            self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
            try:
                (version,) = self._database.execute("PRAGMA application_id").fetchone()
                (others,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if others and version != _APPLICATION:
                    raise self._foreign()
                self._database.executescript(_OPEN)
            except BaseException:
                self._database.close()
                raise

    def __len__(self) -> int:
        return len(self.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def keys(self) -> Sequence[ResultKey]:
        """Keys of all results in the file, oldest first."""
        rows = self._database.execute("SELECT key FROM chunks GROUP BY key ORDER BY max(rowid)")
        return [ResultKey(**json.loads(text)) for (text,) in rows]

    def load(self, key: ResultKey) -> list[bytearray] | None:
        """Return the parts of a result as passed to `keep`; None if there is no such result.

        Raises:
            JournalError: the file cannot be read.
        """
        parts: list[bytearray] = []
        with self._explained("read"):
            found = self._database.execute("SELECT part, data FROM chunks WHERE key = ? ORDER BY rowid", (_text(key),))
            for part, data in found:
                if part == len(parts):
                    parts.append(bytearray())
                parts[part] += data
        return parts or None

    def keep(self, key: ResultKey, parts: Sequence[Buffer]) -> None:
        """Add a result.

        Raises:
            JournalError: it could not be written. Earlier results are unaffected.
        """
        with self._explained("written"):
            with self._database:
                self._database.execute("BEGIN")
                rows = ((_text(key), number, data) for number, part in enumerate(parts) for data in _chunks(part))
                self._database.executemany("INSERT INTO chunks VALUES (?, ?, ?)", rows)
            if time.monotonic() - self._synced >= _SYNC_S:
                self._database.execute("PRAGMA wal_checkpoint")
                self._synced = time.monotonic()

    def close(self) -> None:
        """Force everything to disk and close the file, so that others can use it. Repeated calls do nothing.

        Raises:
            JournalError: the data could not be written.
        """
        with self._explained("written"):
            self._database.close()

    def _check(self) -> None:
        """Create the file if it is missing; check that it is kept, and that only this user can access it."""
        check_kept(self.path, "journal=")
        try:
            with suppress(FileExistsError):  # closing it would give up the locks of another map of this process
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            found = self.path.stat()
        except OSError as error:
            raise self._problem("opened", error.strerror or str(error)) from error
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"journal= must be a file; {self.path} is not one.")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            whose = f"belongs to user {found.st_uid} and has the mode {stat.S_IMODE(found.st_mode):o}"
            raise ConfigError(
                f"The journal {self.path} {whose}. Reading a journal runs code that is in it, so it has to be yours, "
                f"and nobody else may read or write it. If you know where it comes from: chmod 600 {self.path}"
            )

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise self._foreign() from error
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise ConfigError(
                    f"The journal {self.path} is used by another map, of this process or another one. Wait for its "
                    "end, or use another file."
                ) from None
            raise self._problem(done, str(error)) from error

    def _foreign(self) -> ConfigError:
        return ConfigError(f"{self.path} is not a journal of results, and stays as it is. Name another file.")

    def _problem(self, done: str, why: str) -> JournalError:
        return JournalError(f"The journal {self.path} could not be {done}: {why}. Results that it holds are kept.")


def _text(key: ResultKey) -> str:
    return json.dumps(asdict(key), separators=(",", ":"))


def _chunks(part: Buffer) -> Iterator[memoryview]:
    whole = memoryview(part).cast("B")
    return (whole[start : start + _CHUNK] for start in range(0, max(1, len(whole)), _CHUNK))
