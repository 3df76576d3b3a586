"""A file of computed results: appended records, each of which is either complete or absent.

    skyward results 1, salt
    record*: mark, sizes of description and content, description (JSON), checksum, content, checksum

If the writer is killed, at most the record being written is lost; the next writer truncates the incomplete part. After
a power failure, up to a second's records may also be missing. A damaged record counts as missing; the records after it
are still found. The salt is part of the checksums, so that no result can contain bytes that pass for a record. One
writer uses the file at a time, guarded by a lock that ends with its process.

Readers unpickle the content of records, so the file must belong to this user, and nobody else may access it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from skyward.errors import ConfigError, JournalError
from skyward.system import time

_HEADER = b"skyward results 1\n"
_SALT = 16  # bytes
_MARK = b"\xd5result\n"
_PREFIX = struct.Struct("<8sIQ")  # mark, bytes of the description, bytes of the content
_SUM = 16  # bytes of a checksum
_LARGEST_HEAD = 1024 * 1024  # bytes; a larger size indicates damage
_SYNC_S = 1.0  # how often written data is forced to disk
_CHUNK = 1024 * 1024
_PARTS = 512  # buffers written at once; the kernel accepts 1024

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
    start: int  # of its content
    sizes: tuple[int, ...]


class ResultJournal:
    """The journal of one writer. As a context manager it closes the file at the end, so that others can use it.

    Attributes:
        path: the file.
        cut: bytes of an incomplete record that were found at the end of the file and truncated.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file, creating it if necessary, and find its records.

        Raises:
            ConfigError: it is another kind of file, belongs to another user, is accessible to others, or is in use by
            another process.
            JournalError: it cannot be opened or read.
        """
        self.path = Path(path)
        self.cut = 0
        self._salt, self._end = b"", 0
        self._records: dict[ResultKey, _Record] = {}
        self._synced = time.monotonic()
        self._dirty = False
        self._file = self._opened()
        try:
            self._check()
            self._find()
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
        parts = [bytearray(size) for size in record.sizes]
        position = record.start
        found = self._checksum()
        try:
            for part in parts:
                if not self._read_into(part, position):
                    return None
                position += len(part)
                found.update(part)
            expected = os.pread(self._file, _SUM, position)
        except OSError as error:
            raise self._problem("read", error) from error
        return parts if found.digest() == expected else None

    def keep(self, key: ResultKey, parts: Sequence[Buffer]) -> None:
        """Append a result.

        Raises:
            JournalError: it could not be written. Earlier records are unaffected.
        """
        sizes = [memoryview(part).nbytes for part in parts]
        described = {name: getattr(key, name) for name in ("function", "code", "image", "arguments", "occurrence")}
        text = json.dumps({**described, "sizes": sizes}, separators=(",", ":")).encode()
        head = _PREFIX.pack(_MARK, len(text), sum(sizes)) + text
        content = self._checksum()
        for part in parts:
            content.update(part)
        start = self._end
        try:
            self._end = self._write([head, self._checksum(head).digest(), *parts, content.digest()], start)
            self._sync()
        except OSError as error:
            self._cut_to(start)
            raise self._problem("written", error) from error
        self._records[key] = _Record(start + len(head) + _SUM, tuple(sizes))

    def close(self) -> None:
        """Force everything to disk and close the file, so that others can use it. Repeated calls do nothing.

        Raises:
            JournalError: the data could not be written.
        """
        if self._file < 0:
            return
        try:
            self._sync(at_once=True)
        except OSError as error:
            raise self._problem("written", error) from error
        finally:
            self._leave()

    # ------------------------------------------------------------------------------------------------------------

    def _opened(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENXIO):
                raise ConfigError(f"journal= names a file; {self.path} is not one.") from error
            raise self._problem("opened", error) from error

    def _leave(self) -> None:
        file, self._file = self._file, -1
        os.close(file)

    def _check(self) -> None:
        """Check that only this user can access the file, and lock it for this process."""
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"journal= names a file; {self.path} is not one.")
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

    def _find(self) -> None:
        """Index the records, and truncate an incomplete one at the end."""
        size = os.fstat(self._file).st_size
        beginning, begins = os.pread(self._file, len(_HEADER), 0), len(_HEADER) + _SALT
        if beginning != _HEADER[: len(beginning)]:
            raise ConfigError(f"{self.path} is not a journal of results, and stays as it is. Name another file.")
        if size < begins:
            self._salt = os.urandom(_SALT)
            self._end = self._write([_HEADER, self._salt], 0)
            return
        self._salt = os.pread(self._file, _SALT, len(_HEADER))
        position = self._end = begins
        while position < size:
            after = self._read_record(position, size)
            if after is None:
                after = self._next_mark(position + 1, size)
            else:
                self._end = after
            position = after
        if self._end < size:
            self.cut = size - self._end
            os.ftruncate(self._file, self._end)

    def _read_record(self, position: int, size: int) -> int | None:
        """Index the record at a position and return the position after it; None if there is no complete record."""
        prefix = os.pread(self._file, _PREFIX.size, position)
        if len(prefix) < _PREFIX.size:
            return None
        mark, head_size, content_size = _PREFIX.unpack(prefix)
        start = position + _PREFIX.size + head_size + _SUM
        if mark != _MARK or head_size > _LARGEST_HEAD or start + content_size + _SUM > size:
            return None
        text = os.pread(self._file, head_size + _SUM, position + _PREFIX.size)
        if self._checksum(prefix + text[:head_size]).digest() != text[head_size:]:
            return None
        fields = json.loads(text[:head_size])
        sizes = tuple(fields.pop("sizes"))
        self._records[ResultKey(**fields)] = _Record(start, sizes)
        return int(start + content_size + _SUM)

    def _next_mark(self, position: int, size: int) -> int:
        """Return the position where the next record may begin; the end of the file if there is none."""
        while position < size:
            data = os.pread(self._file, _CHUNK, position)
            found = data.find(_MARK)
            if found >= 0:
                return position + found
            if len(data) < _CHUNK:
                return size
            position += len(data) - len(_MARK) + 1
        return size

    def _read_into(self, part: bytearray, position: int) -> bool:
        """Fill a buffer starting at a position; return False at the end of the file."""
        rest = memoryview(part)
        while rest:
            count = os.preadv(self._file, [rest], position)
            if not count:
                return False
            rest, position = rest[count:], position + count
        return True

    def _write(self, parts: Sequence[Buffer], position: int) -> int:
        """Write buffers at a position, in as many steps as necessary, and return the position after them."""
        left = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        self._dirty = True
        while left:
            count = os.pwritev(self._file, left[:_PARTS], position)
            position += count
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if left:
                left[0] = left[0][count:]
        return position

    def _cut_to(self, end: int) -> None:
        """Truncate the file to remove a partly written record."""
        self._end = end
        try:
            os.ftruncate(self._file, end)
        except OSError:
            pass  # the disk may refuse this as it refused the record; the next writer truncates it

    def _sync(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._dirty and (at_once or now - self._synced >= _SYNC_S):
            if sys.platform == "darwin":
                os.fsync(self._file)
            else:
                os.fdatasync(self._file)
            self._synced, self._dirty = now, False

    def _problem(self, done: str, error: OSError) -> JournalError:
        kept = f" What it holds ({len(self)} results) is kept, and found when the program runs again." * bool(self)
        return JournalError(f"The journal {self.path} could not be {done}: {error.strerror or error}.{kept}")

    def _checksum(self, data: bytes = b"") -> hashlib.blake2b:
        return hashlib.blake2b(data, digest_size=_SUM, key=self._salt)
