"""A file of computed results, to which each result is appended as a line of JSON and the bytes that it describes.

If the writer is killed, at most the result being written is lost. After a power failure, up to a second's results may
also be missing. A result whose bytes were damaged counts as missing; a file with a damaged line is refused. One writer
uses the file at a time, guarded by a lock that ends with its process.

Readers unpickle the results, so the file must belong to this user, and nobody else may access it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from skyward.errors import ConfigError, JournalError
from skyward.system import time

_HEADER = b"skyward results 2\n"
_SYNC_S = 1.0  # how often written data is forced to disk

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


@dataclass(frozen=True, slots=True)
class _Record:
    start: int  # of its bytes
    sizes: Sequence[int]
    digest: str


class ResultJournal:
    """The journal of one writer. As a context manager it closes the file at the end, so that others can use it.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file, creating it if necessary, and find its results.

        Raises:
            ConfigError: it is another kind of file, belongs to another user, is accessible to others, or is in use by
            another process.
            JournalError: it cannot be opened or read, or is damaged.
        """
        self.path = Path(path)
        self._records: dict[ResultKey, _Record] = {}
        self._synced = time.monotonic()
        self._file = self._opened()
        try:
            self._check()
            self._end = self._find()
        except OSError as error:
            self._leave()
            raise self._problem("read", error) from error
        except BaseException:
            self._leave()
            raise

    def __len__(self) -> int:
        return len(self._records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def keys(self) -> Sequence[ResultKey]:
        """Keys of all results in the file."""
        return tuple(self._records)

    def load(self, key: ResultKey) -> list[bytearray] | None:
        """Return the parts of a result as passed to `keep`; None if there is no such result or it is damaged.

        Raises:
            JournalError: the file cannot be read.
        """
        record = self._records.get(key)
        if record is None:
            return None
        try:
            with open(self._file, "rb", closefd=False) as file:
                file.seek(record.start)
                parts = [bytearray(size) for size in record.sizes]
                whole = all(file.readinto(part) == len(part) for part in parts)
        except OSError as error:
            raise self._problem("read", error) from error
        return parts if whole and _digest(parts) == record.digest else None

    def keep(self, key: ResultKey, parts: Sequence[Buffer]) -> None:
        """Append a result.

        Raises:
            JournalError: it could not be written. Earlier results are unaffected.
        """
        sizes, digest = [memoryview(part).nbytes for part in parts], _digest(parts)
        head = json.dumps({**asdict(key), "sizes": sizes, "digest": digest}, separators=(",", ":")).encode()
        line = b"%08x %b\n" % (zlib.crc32(head), head)
        try:
            end = self._write((line, *parts), self._end)
            if time.monotonic() - self._synced >= _SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            with suppress(OSError):  # the disk may refuse this as it refused the result; the next writer does it
                os.ftruncate(self._file, self._end)
            raise self._problem("written", error) from error
        self._records[key] = _Record(self._end + len(line), sizes, digest)
        self._end = end

    def close(self) -> None:
        """Force everything to disk and close the file, so that others can use it. Repeated calls do nothing.

        Raises:
            JournalError: the data could not be written.
        """
        if self._file < 0:
            return
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._problem("written", error) from error
        finally:
            self._leave()

    def _opened(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENXIO):
                raise ConfigError(f"journal= must be a file; {self.path} is not one.") from error
            raise self._problem("opened", error) from error

    def _check(self) -> None:
        """Check that only this user can access the file, and lock it for this process."""
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"journal= must be a file; {self.path} is not one.")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            whose = f"belongs to user {found.st_uid} and has the mode {stat.S_IMODE(found.st_mode):o}"
            raise ConfigError(
                f"The journal {self.path} {whose}. Reading a journal runs code that is in it, so it has to be yours, "
                f"and nobody else may read or write it. If you know where it comes from: chmod 600 {self.path}"
            )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"The journal {self.path} is used by another map, of this process or another one. Wait for its end, or "
                "use another file."
            ) from None

    def _leave(self) -> None:
        file, self._file = self._file, -1
        os.close(file)

    def _find(self) -> int:
        """Index the results, remove an incomplete one at the end, and return the position after the last."""
        size = os.fstat(self._file).st_size
        with open(self._file, "rb", closefd=False) as file:
            beginning = file.readline(len(_HEADER))
            if not _HEADER.startswith(beginning):
                raise ConfigError(f"{self.path} is not a journal of results, and stays as it is. Name another file.")
            if beginning != _HEADER:
                return self._write((_HEADER,), 0)
            end = file.tell()
            while (line := file.readline()).endswith(b"\n"):
                checksum, _, head = line[:-1].partition(b" ")
                if checksum != b"%08x" % zlib.crc32(head):
                    raise JournalError(
                        f"The journal {self.path} is damaged after {len(self)} results, at byte {end}. To go on with "
                        f"these alone: truncate -s {end} {self.path}"
                    )
                fields = json.loads(head)
                record = _Record(file.tell(), fields.pop("sizes"), fields.pop("digest"))
                if record.start + sum(record.sizes) > size:
                    break
                end = file.seek(sum(record.sizes), os.SEEK_CUR)
                self._records[ResultKey(**fields)] = record
        if end < size:
            os.ftruncate(self._file, end)
        return end

    def _write(self, parts: Iterable[Buffer], position: int) -> int:
        """Write buffers at a position, and return the position after them."""
        for part in parts:
            left = memoryview(part).cast("B")
            while left:
                count = os.pwrite(self._file, left, position)
                position, left = position + count, left[count:]
        return position

    def _problem(self, done: str, error: OSError) -> JournalError:
        kept = f" What it holds ({len(self)} results) is kept, and found when the program runs again." * bool(self)
        return JournalError(f"The journal {self.path} could not be {done}: {error.strerror or error}.{kept}")


def _digest(parts: Iterable[Buffer]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()
