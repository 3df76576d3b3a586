"""The record of a named pool: which client holds it, and what the next client needs to take over its nodes.

`pools/NAME/` in the user's state directory, accessible to that user only:

- `lock`: locked by the client that holds the pool for as long as its process lives; its content identifies the client
- `pool.json`: the pool's identifier, where it runs, when it expires, and its nodes with their keys
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError, PoolError
from skyward.records.run import state_folder, write_json

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNode:
    """A node that can be taken over.

    Attributes:
        index: its index in the pool.
        key: its key, hexadecimal.
        agent: address of its agent, as the agent announced it.
        shape: parameters it was started with, by name; a client that needs other values starts another node.
        about: data by which its provider finds it.
    """

    index: int
    key: str = field(repr=False)
    agent: str
    shape: Mapping[str, str]
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPool:
    """A named pool, in the state in which its last client left it.

    Attributes:
        name: its name.
        pool: its identifier, with which its resources are labelled.
        provider: where it runs, as its provider describes it.
        until: when it ends unless a client takes it, in seconds since 1970; None while a client holds it.
        nodes: its nodes.
    """

    name: str
    pool: str
    provider: str
    until: float | None = None
    nodes: tuple[KeptNode, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the record to the pool's directory."""
        write_json(folder / "pool.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> KeptPool | None:
        """Read the record in a pool's directory; None if there is none, or it is another user's or of another version.

        A record written by somebody else could make the client connect to that person's nodes, with that person's keys.
        """
        try:
            with (folder / "pool.json").open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():  # another user's home directory, as with sudo
                    return None
                values = json.loads(file.read())
            nodes = tuple(KeptNode(**each) for each in values["nodes"])
            return cls(**{each.name: values[each.name] for each in fields(cls) if each.name != "nodes"}, nodes=nodes)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the pool is then started from scratch, and the leases of its old nodes expire

    def with_node(self, node: KeptNode) -> KeptPool:
        """Return a copy with this node in place of the one with the same index."""
        others = [each for each in self.nodes if each.index != node.index]
        return replace(self, nodes=tuple(sorted((*others, node), key=lambda each: each.index)))


class PoolLock:
    """A lock on a pool's name. The kernel releases it when the process ends, for whatever reason.

    Args:
        folder: the pool's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None

    def acquire(self, *, wait: bool, holder: str = "") -> bool:
        """Acquire the lock; return False if another client holds it and `wait` is false.

        Args:
            wait: whether to block until it is free; Ctrl-C interrupts that.
            holder: who this is, for other clients to read; "" for a brief lock.
        """
        try:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise PoolError(
                f"Pool {self._folder.name!r} cannot be kept: its record is in {self._folder.parent}, which cannot "
                f"be written to ({error.strerror}). Set HOME or XDG_STATE_HOME to a directory of yours."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._handle = handle
        if holder:
            os.truncate(handle, 0)
            os.pwrite(handle, holder.encode(), 0)
        return True

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._handle is not None

    def holder(self) -> str:
        """Return who holds the pool; "" if that is not known."""
        return (self._folder / "lock").read_text(errors="replace")

    def release(self) -> None:
        """Release the lock so that the next client can acquire it."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # a process that was just forked may still have a copy
            self.let_go()

    def let_go(self) -> None:
        """Close a forked process's copy of the lock, which the parent process keeps."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)

    def remove(self) -> None:
        """Remove the pool's record while this process holds the lock. The lock itself stays, for those that wait."""
        (self._folder / "pool.json").unlink(missing_ok=True)


def pool_folder(name: str) -> Path:
    """Return the directory of the pool with this name, whether or not it exists.

    Raises:
        ConfigError: the name is not valid for a pool.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name= may have at most 41 letters, digits, '-', '_' and '.', a letter or digit first; found {name!r}."
        )
    return pools_folder() / name


def pools_folder() -> Path:
    """Return the directory that contains the records of named pools."""
    return state_folder() / "pools"


def pool_records() -> Iterator[tuple[Path, KeptPool]]:
    """Yield the directory and the record of each of this user's named pools."""
    for path in sorted(pools_folder().glob("*/pool.json")):
        record = KeptPool.read(path.parent)
        if record is not None:
            yield path.parent, record
