"""`checkpoint`: a directory for a function's state that survives its node."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Protocol, Self

from skyward.errors import CheckpointError, ConfigError
from skyward.model.instance import InstanceInfo
from skyward.runtime.checkpoint_store import CheckpointStore
from skyward.runtime.environment import at_end, on_every_rank

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,=+-]{0,100}")


class Store(Protocol):
    """A store of commits: `CheckpointStore`, or access to the client's; see there."""

    def last(self) -> int: ...
    def fill(self, number: int, target: Path) -> None: ...
    def commit(self, source: Path) -> int: ...


class Checkpoint:
    """A directory of this node with the files of the last commit. Created by `sky.checkpoint`.

    As a context manager it is committed at the end of the block, unless that raises an exception.

    Attributes:
        path: the directory. It is removed at the end of the call.
        commits: number of commits so far, including those of earlier runs of the call; 0 if nothing has been committed
            yet and the directory is empty.
    """

    def __init__(self, name: str, path: Path, store: Store, commits: int, rank: int | None) -> None:
        self.path, self.commits = path, commits
        self._name, self._store, self._rank, self._process = name, store, rank, os.getpid()

    def commit(self) -> None:
        """Store the present state of the directory, replacing the previous commit as a whole; return when it is safe.

        Do not write to the directory meanwhile.

        Raises:
            CheckpointError: it cannot be stored: disk full, no connection, a link or device in the directory, or
                another rank's checkpoint. The previous commit is unaffected.
        """
        if os.getpid() != self._process:
            raise CheckpointError(f"checkpoint({self._name!r}) cannot be committed by a process forked from its own.")
        own = _own_rank()
        if self._rank is not None and own is not None and own != self._rank:
            raise CheckpointError(
                f"checkpoint({self._name!r}, rank={self._rank}) is rank {self._rank}'s; rank {own} cannot commit it."
            )
        self.commits = self._store.commit(self.path)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """Return a path in the directory."""
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
    """The functions of a worker for the checkpoints of its calls."""

    def store(self, name: str, rank: int | None) -> Store:
        """Return the client's store of that name for the call of this thread.

        Raises:
            CheckpointError: there is no call, or another call uses it.
        """

    def directory(self) -> Path:
        """Create a new directory on the node."""


_worker: Worker | None = None  # None in processes other than workers


def checkpoint(name: str | os.PathLike[str], *, rank: int | None = None) -> Checkpoint:
    """Return a directory for state that a function needs after the loss of its node, with the files of the last commit.

    With `@sky.compute(retries=...)`, the run that follows a lost one starts with the last commit.

    Args:
        name: a name ("train"): the client stores its commits below `ComputePool(checkpoints=...)`, for all later calls
            of this name. Or an absolute path, on a volume or another file system that outlives the node: its commits
            are stored there, and not transferred to the client. Only one call at a time can use a checkpoint.
        rank: in a call on all ranks, None selects a separate checkpoint for each rank. A number selects that rank's for
            all, and only that rank may commit. Ignored in a call on one rank.

    Raises:
        ConfigError: the name is invalid.
        CheckpointError: another call uses it, its content cannot be read, or no call of a pool runs here.

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
    commits, path = store.last(), _directory()
    store.fill(commits, path)
    return Checkpoint(text, path, store, commits, rank)


def install(worker: Worker) -> None:
    """Make `checkpoint` use this worker; called by the runner."""
    global _worker
    _worker = worker


def is_name(text: str) -> bool:
    """Return whether this can be the name of a checkpoint stored by the client."""
    return _NAME.fullmatch(text) is not None


def _directory() -> Path:
    """Create a directory that is removed at the end of the call, outside calls at the end of the process."""
    path = Path(tempfile.mkdtemp(prefix="skyward-checkpoint-")) if _worker is None else _worker.directory()
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not remove its parent's directory
            shutil.rmtree(path, ignore_errors=True)  # threads left by the call may still write there

    if _worker is None:
        atexit.register(remove)
    else:
        at_end(remove)
    return path


def _place(folder: Path, rank: int | None) -> Path:
    """Return the directory of a rank's commits below a path, in a call on all ranks."""
    own = _own_rank()
    return folder if own is None else folder / f"rank-{own if rank is None else rank}"


def _own_rank() -> int | None:
    """Return the rank of this process in a call that runs on all ranks; else None."""
    place = InstanceInfo.current()
    return place.global_worker_index if place is not None and on_every_rank() else None
