"""The commits of one checkpoint in a directory: on the client, or on a file system that outlives the node.

- `000007/`: the files of commit 7; unchanged ones are links to those of the previous commit
- `000007.json`: path, digest, size and mode of each file. Written last: without it the commit does not exist

The last two commits are kept. A killed writer leaves a directory without a description, which the next writer removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from skyward.errors import CheckpointError

CHUNK = 1024 * 1024  # bytes of a file that are sent or copied at once
_KEPT = 2


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of a commit: SHA-256 (hex) of its content, size in bytes, and whether it is executable."""

    digest: str
    size: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of a checkpoint at a commit.

    Attributes:
        number: counted from 1; 0 for a checkpoint that was never committed.
        files: the files, by relative path with "/".
        folders: the empty directories.
    """

    number: int = 0
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    folders: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a document for `of_json`."""
        files = {path: [facts.digest, facts.size, facts.executable] for path, facts in self.files.items()}
        return {"number": self.number, "files": files, "folders": list(self.folders)}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Commit:
        """Return the commit of a document from `to_json`.

        Raises:
            CheckpointError: it names a file outside the checkpoint, or is invalid.
        """
        try:
            files = {
                _checked(path): FileFacts(str(a), int(b), bool(c)) for path, (a, b, c) in document["files"].items()
            }
            return cls(int(document["number"]), files, tuple(map(_checked, document["folders"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"The description of a commit cannot be read: {error!r}.") from error


class CheckpointStore:
    """The directory of one checkpoint, created by the first commit. For one writer at a time.

    Every method raises CheckpointError on errors of the file system.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._draft: Commit | None = None
        self._writing: _Writing | None = None
        self._missing: list[str] = []

    def last(self) -> Commit:
        """Return the last complete commit."""
        for number in reversed(self._numbers()):
            try:
                commit = Commit.of_json(json.loads(self._description(number).read_bytes()))
            except (OSError, ValueError, CheckpointError):
                continue  # its writer was killed while writing the description; the previous commit counts
            if all(_size(self._files(number) / path) == facts.size for path, facts in commit.files.items()):
                return commit
        return Commit()

    def read(self, commit: Commit, path: str, offset: int) -> bytes:
        """Return a chunk of a file, at most `CHUNK` bytes; empty at its end."""
        try:
            with (self._files(commit.number) / _checked(path)).open("rb") as file:
                file.seek(offset)
                return file.read(CHUNK)
        except OSError as error:
            raise self._problem(f"{path} of commit {commit.number} cannot be read", error) from error

    def begin(self, files: Mapping[str, FileFacts], folders: Sequence[str]) -> Sequence[str]:
        """Begin a commit of these files; return the paths of those to be written, one after the other."""
        last = self.last()
        have = {facts.digest: path for path, facts in last.files.items()}
        try:
            self._clear(after=last.number)
            draft = self._draft = Commit(last.number + 1, files, folders)
            into = self._files(draft.number)
            _make(into)
            for folder in folders:
                _make(into / folder)
            self._missing = []
            for path, facts in files.items():
                _make((into / path).parent)
                if facts.digest in have:
                    _link(self._files(last.number) / have[facts.digest], into / path, facts)
                else:
                    self._missing.append(path)
        except OSError as error:
            raise self._problem("no commit can be begun", error) from error
        return tuple(self._missing)

    def write(self, path: str, data: bytes | bytearray | memoryview) -> None:
        """Append to a file of the commit; only its last chunk may be short, and an empty file has one empty chunk."""
        draft = self._draft
        if draft is None or not self._missing or path != self._missing[0]:
            raise CheckpointError(f"{path} is not the file that the commit under way expects.")
        facts = draft.files[path]
        try:
            if self._writing is None:
                self._writing = _Writing.begin(self._files(draft.number) / path, facts)
            if self._writing.append(data, facts):
                self._writing = None
                del self._missing[0]
        except OSError as error:
            raise self._problem(f"{path} cannot be written", error) from error

    def finish(self) -> int:
        """Finish the commit, which becomes the last one, and return its number."""
        draft, self._draft = self._draft, None
        if draft is None or self._missing:
            raise CheckpointError("A commit has to be begun, and to have all of its files, before it can end.")
        try:
            for folder in {self._files(draft.number) / path for path in draft.files} | {self._files(draft.number) / ""}:
                _sync_folder(folder if folder.is_dir() else folder.parent)
            with open(self._description(draft.number), "xb", opener=_private) as file:
                file.write(json.dumps(draft.to_json()).encode())
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(self._folder)
            for number in self._numbers()[:-_KEPT]:
                self._description(number).unlink()
                shutil.rmtree(self._files(number), ignore_errors=True)  # without its description it is no commit
        except OSError as error:
            raise self._problem("the commit cannot be ended", error) from error
        return draft.number

    def discard(self) -> None:
        """Abandon the commit in progress, if there is one."""
        if self._writing is not None:
            self._writing.file.close()
        self._draft = self._writing = None

    def _clear(self, *, after: int) -> None:
        """Remove the files of an unfinished commit."""
        self.discard()
        for found in self._folder.glob("[0-9]*"):
            if found.stem.isdigit() and int(found.stem) > after:
                found.unlink() if found.is_file() else shutil.rmtree(found)

    def _numbers(self) -> list[int]:
        return sorted(int(found.stem) for found in self._folder.glob("[0-9]*.json") if found.stem.isdigit())

    def _files(self, number: int) -> Path:
        return self._folder / f"{number:06}"

    def _description(self, number: int) -> Path:
        return self._folder / f"{number:06}.json"

    def _problem(self, what: str, error: OSError) -> CheckpointError:
        self.discard()
        return CheckpointError(
            f"The checkpoint {self._folder}: {what}: {error.strerror or error}. What was committed before is still "
            "there."
        )


@dataclass(slots=True)
class _Writing:
    """A file that is being written."""

    path: Path
    file: BinaryIO
    hashed: Any
    size: int = 0

    @classmethod
    def begin(cls, path: Path, facts: FileFacts) -> _Writing:
        return cls(path, open(path, "xb", opener=_executable if facts.executable else _private), hashlib.sha256())

    def append(self, data: bytes | bytearray | memoryview, facts: FileFacts) -> bool:
        """Write data; return whether the file is complete."""
        self.file.write(data)
        self.hashed.update(data)
        self.size += len(data)
        if self.size < facts.size and data:
            return False
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())
        if self.size != facts.size or self.hashed.hexdigest() != facts.digest:
            raise CheckpointError(f"{self.path.name} was changed while it was committed. Write it first, then commit.")
        return True


def _checked(path: str) -> str:
    """Return the path after checking that it is below the checkpoint."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in path or "/".join(parts) != path:
        raise CheckpointError(f"{path!r} is not a path of a file in a checkpoint.")
    return path


def _link(source: Path, target: Path, facts: FileFacts) -> None:
    """Add a file of the last commit to this one."""
    try:
        os.link(source, target)
    except OSError:  # the file system of a volume may not support links
        with source.open("rb") as file:
            writing = _Writing.begin(target, facts)
            while not writing.append(file.read(CHUNK), facts):
                pass


def _make(folder: Path) -> None:
    """Create a directory and its missing parents, accessible to this user only."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _executable(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o700)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    except OSError:
        pass  # the file system of a volume may not support it; it has stored closed files
    finally:
        os.close(file)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return -1
