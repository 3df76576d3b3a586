"""The commits of one checkpoint in a directory: on the client, or on a file system that outlives the node.

Commit 7 is the directory `000007`, and `000007.json` with the sizes of its files, which is written last: without it, or
with other sizes, the commit does not exist. A directory that is renamed would do on a disk; on a bucket, whose files
appear one by one, it would not. A writer that is killed leaves the commits before. The last two are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

from skyward.errors import CheckpointError

CHUNK = 1024 * 1024  # bytes that are sent at once
_KEPT = 2
T = TypeVar("T")


class CheckpointStore:
    """The directory of one checkpoint, created by the first commit. For one writer at a time.

    `read` and `write` transfer the files of a commit as a tar archive, in chunks.

    Every method raises CheckpointError on errors of the file system.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archive: IO[bytes] | None = None

    def last(self) -> int:
        """Return the number of the last commit; 0 if there is none."""
        return next((number for number in reversed(self._numbers()) if self._is_complete(number)), 0)

    def fill(self, number: int, target: Path) -> None:
        """Copy the files of a commit to a directory."""
        if number:
            self._try("cannot be read", lambda: _copy(self._files(number), target))

    def commit(self, source: Path) -> int:
        """Store a copy of a directory as the last commit, and return its number."""
        check(self._folder.name, source)
        return self._commit(lambda folder: _copy(source, folder))

    def read(self, number: int, offset: int) -> bytes:
        """Return a chunk of the archive of a commit; empty at its end."""

        def chunk() -> bytes:
            if offset == 0:
                self._archive = self._opened()
                pack(self._files(number), self._archive)
            if self._archive is None:
                return b""
            self._archive.seek(offset)
            data = self._archive.read(CHUNK)
            if not data:
                self.discard()
            return data

        return self._try("cannot be read", chunk)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a chunk of the archive of the next commit; offset 0 begins it."""

        def append() -> None:
            if offset == 0 or self._archive is None:
                _make(self._folder)
                self._archive = self._opened()
            self._archive.seek(offset)
            self._archive.write(data)

        self._try("cannot be written", append)

    def finish(self) -> int:
        """Store what the archive holds as the last commit, and return its number."""
        archive, self._archive = self._archive, None
        if archive is None:
            raise CheckpointError("A commit needs an archive.")
        with archive:
            archive.seek(0)
            return self._commit(lambda folder: unpack(archive, folder))

    def discard(self) -> None:
        """Abandon the commit in progress, if there is one."""
        if self._archive is not None:
            self._archive.close()
        self._archive = None

    def _commit(self, write: Callable[[Path], object]) -> int:
        number = self.last() + 1
        into, description = self._files(number), self._description(number)

        def replace() -> None:
            _make(self._folder)
            for unfinished in self._folder.glob("[0-9]*"):
                if unfinished.stem.isdigit() and int(unfinished.stem) >= number:
                    unfinished.unlink() if unfinished.is_file() else shutil.rmtree(unfinished)
            into.mkdir(mode=0o700)
            write(into)
            for folder, _, _ in os.walk(into):
                _sync(Path(folder))
            with open(description, "x", opener=_private) as file:
                json.dump(_sizes(into), file)
                file.flush()
                os.fsync(file.fileno())
            _sync(self._folder)
            for old in self._numbers()[:-_KEPT]:
                self._description(old).unlink()
                shutil.rmtree(self._files(old), ignore_errors=True)  # without its description it is no commit

        self._try(f"commit {number} cannot be written", replace)
        return number

    def _opened(self) -> IO[bytes]:
        self.discard()
        return tempfile.TemporaryFile(dir=self._folder)

    def _numbers(self) -> list[int]:
        return sorted(int(found.stem) for found in self._folder.glob("[0-9]*.json") if found.stem.isdigit())

    def _is_complete(self, number: int) -> bool:
        try:
            return bool(json.loads(self._description(number).read_bytes()) == _sizes(self._files(number)))
        except (OSError, ValueError):
            return False  # its writer was killed while writing the description; the previous commit counts

    def _description(self, number: int) -> Path:
        return self._folder / f"{number:06}.json"

    def _files(self, number: int) -> Path:
        return self._folder / f"{number:06}"

    def _try(self, what: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except (OSError, tarfile.TarError) as error:
            self.discard()
            why = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"The checkpoint {self._folder}: {what}: {why}. What was committed before is still there."
            ) from error


def check(name: str, root: Path) -> None:
    """Check that a directory holds files and directories only.

    Raises:
        CheckpointError: it holds a link, a device or a pipe.
    """
    for folder, below, names in os.walk(root):
        for each in (*names, *below):
            mode = (Path(folder) / each).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise CheckpointError(f"checkpoint({name!r}) holds {each}, which is not a file. Keep files only.")


def pack(folder: Path, file: IO[bytes]) -> None:
    """Write the content of a directory as a tar archive.

    Raises:
        OSError: a file cannot be read, or became shorter meanwhile.
    """
    with tarfile.open(fileobj=file, mode="w|", bufsize=CHUNK, dereference=True) as archive:
        for each in sorted(folder.iterdir()):
            archive.add(each, each.name)


def unpack(file: IO[bytes], folder: Path) -> None:
    """Write the files and directories of an archive from `pack` below a directory.

    Raises:
        CheckpointError: it holds something else, or a path outside; whoever sent it.
    """
    with tarfile.open(fileobj=file, mode="r|", bufsize=CHUNK) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
                raise CheckpointError(f"{member.name!r} is not a path of a file in a checkpoint.")
            target = folder / path
            if member.isdir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
                continue
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            with open(target, "xb", opener=_executable if member.mode & 0o100 else _private) as written:
                shutil.copyfileobj(content, written, CHUNK)
                written.flush()
                os.fsync(written.fileno())


def _copy(source: Path, target: Path) -> None:
    """Copy the content of a directory without the times of its files, which buckets cannot change alone."""
    with tempfile.TemporaryFile() as archive:
        pack(source, archive)
        archive.seek(0)
        unpack(archive, target)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _executable(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o700)


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file below a directory, by relative path."""
    files = (Path(where) / name for where, _, names in os.walk(folder) for name in names)
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


def _make(folder: Path) -> None:
    """Create a directory and its missing parents, accessible to this user only."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    except OSError:
        pass  # the file system of a volume may not support it; it has stored closed files
    finally:
        os.close(file)
