"""The commits of one checkpoint in a directory: on the client, or on a file system that outlives the node.

Commit 7 is the directory `000007`, and the empty file `000007.done`, which is written last: without it, the commit does
not exist. A directory that is renamed would do on a disk; on a bucket, whose files appear one by one, it would not. A
writer that is killed leaves the commits before. The last two are kept, one for those who read it meanwhile.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from skyward.errors import CheckpointError

CHUNK = 8 * 1024 * 1024  # bytes that are sent at once
_KEPT = 2


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
        return max(self._numbers(), default=0)

    def fill(self, number: int, target: Path) -> None:
        """Copy the files of a commit to a directory."""
        if number:
            with self._explained("cannot be read"):
                _copy(self._files(number), target)

    def commit(self, source: Path) -> int:
        """Store a copy of a directory as the last commit, and return its number."""
        return self._commit(lambda folder: _copy(source, folder))

    def read(self, number: int, offset: int) -> bytes:
        """Return a chunk of the archive of a commit; empty at its end."""
        with self._explained("cannot be read"):
            if offset == 0 or self._archive is None:
                self._archive = self._opened()
                pack(self._files(number), self._archive)
            self._archive.seek(offset)
            data = self._archive.read(CHUNK)
        if not data:
            self.discard()
        return data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a chunk of the archive of the next commit; offset 0 begins it."""
        with self._explained("cannot be written"):
            if offset == 0 or self._archive is None:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._archive = self._opened()
            self._archive.seek(offset)
            self._archive.write(data)

    def finish(self) -> int:
        """Store what the archive holds as the last commit, and return its number."""
        archive, self._archive = self._archive, None
        if archive is None:
            raise CheckpointError("A commit needs an archive.")
        with archive:
            archive.seek(0)
            return self._commit(lambda folder: unpack(archive, folder))

    def discard(self) -> None:
        """Abandon the transfer in progress, if there is one."""
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.close()

    def _opened(self) -> IO[bytes]:
        self.discard()
        return tempfile.TemporaryFile(dir=self._folder)

    def _commit(self, write: Callable[[Path], object]) -> int:
        number = self.last() + 1
        into = self._files(number)
        with self._explained(f"commit {number} cannot be written"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(into, ignore_errors=True)  # what an unfinished commit has left
            into.mkdir(mode=0o700)
            write(into)
            for folder, _, _ in os.walk(into):
                _sync(Path(folder))
            self._done(number).touch(mode=0o600)
            _sync(self._folder)
            for old in self._numbers()[:-_KEPT]:
                self._done(old).unlink()
                shutil.rmtree(self._files(old), ignore_errors=True)  # it is no commit any more
        return number

    def _numbers(self) -> list[int]:
        return sorted(int(found.stem) for found in self._folder.glob("[0-9]*.done") if found.stem.isdigit())

    def _done(self, number: int) -> Path:
        return self._folder / f"{number:06}.done"

    def _files(self, number: int) -> Path:
        return self._folder / f"{number:06}"

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, tarfile.TarError) as error:
            self.discard()
            why = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"The checkpoint {self._folder}: {what}: {why}. What was committed before is still there."
            ) from error


def pack(folder: Path, file: IO[bytes]) -> None:
    """Write the content of a directory as a tar archive.

    Raises:
        CheckpointError: it holds a link, a device or a pipe.
        OSError: a file cannot be read, or became shorter meanwhile.
    """
    with tarfile.open(fileobj=file, mode="w|", bufsize=CHUNK, dereference=True) as archive:
        for each in sorted(folder.rglob("*")):
            if each.is_symlink() or not (each.is_file() or each.is_dir()):
                raise CheckpointError(f"The checkpoint holds {each.name}, which is not a file. Keep files only.")
            archive.add(each, each.relative_to(folder), recursive=False)


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


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    except OSError:
        pass  # the file system of a volume may not support it; it has stored closed files
    finally:
        os.close(file)
