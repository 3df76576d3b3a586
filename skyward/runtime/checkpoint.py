"""`checkpoint`: a directory for a function's state that survives its node."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from skyward.errors import CheckpointError, ConfigError
from skyward.model.instance import InstanceInfo
from skyward.runtime.checkpoint_store import CHUNK, CheckpointStore, Commit, FileFacts
from skyward.runtime.environment import at_end, on_every_rank

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=+-]{0,100}")


class Store(Protocol):
    """Where commits are kept: `CheckpointStore`, or what reaches the client's; see there."""

    def last(self) -> Commit: ...
    def read(self, commit: Commit, path: str, offset: int) -> bytes: ...
    def begin(self, files: Mapping[str, FileFacts], folders: Sequence[str]) -> Sequence[str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def finish(self) -> int: ...


class Checkpoint:
    """A directory of this node, filled with what was committed last. Made by `sky.checkpoint`.

    As a context it is committed at the end of the block, unless an exception ends that.

    Attributes:
        path: the directory. It is removed when the call has ended.
        commits: how many commits there have been, those of earlier runs of the call included; 0 where nothing was
            committed yet, and the directory is empty.
    """

    def __init__(self, name: str, path: Path, store: Store, commits: int, rank: int | None) -> None:
        self.path, self.commits = path, commits
        self._name, self._store, self._rank, self._process = name, store, rank, os.getpid()

    def commit(self) -> None:
        """Keep the directory as it is now; returns when the state is safe. It replaces the one before as a whole.

        Only files whose content has changed travel. What is written meanwhile is not safe, and may be an error.

        Raises:
            CheckpointError: it cannot be kept: no room, no connection, a link or a device in the directory, or another
                rank's checkpoint. What was committed before is still there.
        """
        if os.getpid() != self._process:
            raise CheckpointError(f"checkpoint({self._name!r}) cannot be committed by a process forked from its own.")
        own = _own_rank()
        if self._rank is not None and own is not None and own != self._rank:
            raise CheckpointError(
                f"checkpoint({self._name!r}, rank={self._rank}) is rank {self._rank}'s; rank {own} cannot commit it."
            )
        files, folders = _content(self._name, self.path)
        for path in self._store.begin(files, folders):
            with (self.path / path).open("rb") as file:
                left = files[path].size
                while True:
                    data = file.read(CHUNK)
                    self._store.write(path, data)
                    left -= len(data)
                    if left <= 0 or not data:
                        break
        self.commits = self._store.finish()

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """A path in the directory."""
        return self.path / name

    def __fspath__(self) -> str:
        return str(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()

    def __repr__(self) -> str:
        return f"<checkpoint {self._name} at {self.path}, {self.commits} commits>"


class Worker(Protocol):
    """What a worker gives its calls."""

    def store(self, name: str, rank: int | None) -> Store:
        """The client's store of that name for the call of this thread.

        Raises:
            CheckpointError: there is no call, or another call has it.
        """

    def directory(self) -> Path:
        """A new directory of the node."""


_worker: Worker | None = None  # None in processes that are no workers


def checkpoint(name: str | os.PathLike[str], *, rank: int | None = None) -> Checkpoint:
    """A directory for what a function has to go on with after its node is lost, filled with what was committed last.

    With `@sky.compute(retries=...)`, the run that follows a lost one begins with the last commit.

    Args:
        name: a name ("train"): the client keeps what is committed, for all calls of this name that follow, below
            `ComputePool(checkpoints=...)`. Or an absolute path, of a volume or another file system that outlives the
            node: it is kept there, and does not travel to the client. One call at a time uses a checkpoint.
        rank: in a call on all ranks, None gives each rank a checkpoint of its own. A number gives that rank's to all,
            and that rank alone may commit. It means nothing in a call on one rank.

    Raises:
        ConfigError: this cannot be a name.
        CheckpointError: another call uses it, what it holds cannot be read, or no call of a pool runs here.

    Examples:
        >>> @sky.compute(retries=3)
        ... def train(steps):
        ...     state = sky.checkpoint("train")
        ...     done = int((state / "done").read_text()) if state.commits else 0
        ...     for step in range(done, steps):
        ...         (state / "done").write_text(str(step + 1))
        ...         state.commit()
    """
    text = os.fspath(name)
    if Path(text).is_absolute():
        store: Store = CheckpointStore(_place(Path(text), rank))
    elif not is_name(text):
        raise ConfigError(
            f"checkpoint({text!r}): give a name of letters, digits and _.,=+- or an absolute path that outlives the "
            "node."
        )
    elif _worker is None:
        raise CheckpointError(
            f"checkpoint({text!r}) was called where no call of a pool runs. Give an absolute path there, which needs "
            "no pool."
        )
    else:
        store = _worker.store(text, rank)
    commit = store.last()
    path = _directory()
    _fill(text, path, store, commit)
    return Checkpoint(text, path, store, commit.number, rank)


def install(worker: Worker) -> None:
    """Let `checkpoint` use this worker; called by the runner."""
    global _worker
    _worker = worker


def is_name(text: str) -> bool:
    """Whether this can be the name of a checkpoint that the client keeps."""
    return _NAME.fullmatch(text) is not None


def _directory() -> Path:
    """A directory that is removed at the end of the call; outside calls, at that of the process."""
    path = Path(tempfile.mkdtemp(prefix="skyward-checkpoint-")) if _worker is None else _worker.directory()
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child that ends takes nothing from this process
            shutil.rmtree(path, ignore_errors=True)  # threads that the call has left may still write there

    if _worker is None:
        atexit.register(remove)
    else:
        at_end(remove)
    return path


def _place(folder: Path, rank: int | None) -> Path:
    """Where a rank's commits are below a path, in a call on all ranks."""
    own = _own_rank()
    return folder if own is None else folder / f"rank-{own if rank is None else rank}"


def _own_rank() -> int | None:
    """The rank that runs here, in a call that runs on all of them."""
    place = InstanceInfo.current()
    return place.global_worker_index if place is not None and on_every_rank() else None


def _content(name: str, root: Path) -> tuple[dict[str, FileFacts], list[str]]:
    """The files below a directory, and the directories that are empty."""
    files: dict[str, FileFacts] = {}
    folders = []
    for folder, below, names in os.walk(root):
        for each in (*names, *below):
            path = Path(folder) / each
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise CheckpointError(f"checkpoint({name!r}) holds {each}, which is not a file. Keep files only.")
        files |= {(Path(folder) / each).relative_to(root).as_posix(): _facts(Path(folder) / each) for each in names}
        if not below and not names and Path(folder) != root:
            folders.append(Path(folder).relative_to(root).as_posix())
    return files, folders


def _facts(path: Path) -> FileFacts:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        found = os.fstat(file.fileno())
    return FileFacts(digest, found.st_size, bool(found.st_mode & 0o100))


def _fill(name: str, root: Path, store: Store, commit: Commit) -> None:
    """Write what was committed into a directory, and check it."""
    for folder in commit.folders:
        (root / folder).mkdir(parents=True)
    for path, facts in commit.files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        offset, hashed = 0, hashlib.sha256()
        with target.open("xb") as file:
            while offset < facts.size and (data := store.read(commit, path, offset)):
                file.write(data)
                hashed.update(data)
                offset += len(data)
        if hashed.hexdigest() != facts.digest:
            raise CheckpointError(
                f"checkpoint({name!r}): {path} of commit {commit.number} is damaged where it is kept. Remove that "
                "commit there to go on with the one before it."
            )
        if facts.executable:
            target.chmod(0o700)
