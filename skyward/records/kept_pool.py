"""The record of a pool with a name: who has it, and what the next client needs to take its nodes over.

`pools/NAME/` under the user's state directory, which only the user can open:

- `lock`: locked by the client that has the pool, for as long as its process lives; it says who that is
- `pool.json`: its identifier, where it runs, until when it is kept, and its nodes with their keys
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
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
        agent: address of its agent, as it announced it.
        shape: what it was started with, by parameter: a client that asks for something else starts another.
        about: what its provider finds it by.
    """

    index: int
    key: str = field(repr=False)
    agent: str
    shape: Mapping[str, str]
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPool:
    """A pool with a name, as the last client that had it has left it.

    Attributes:
        name: its name.
        pool: its identifier, which labels what belongs to it.
        provider: where it runs, in the words of its provider.
        until: when it ends unless a client takes it, in seconds since 1970; None while a client has it.
        nodes: those that it has.
    """

    name: str
    pool: str
    provider: str
    until: float | None = None
    nodes: tuple[KeptNode, ...] = ()

    def write(self, folder: Path) -> None:
        """Put it into the pool's directory."""
        write_json(folder / "pool.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> KeptPool | None:
        """What is in a pool's directory; None where there is no record of this user's, or one of another version.

        Whoever writes a record has its client connect to nodes of theirs, with keys of theirs.
        """
        try:
            with (folder / "pool.json").open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():  # another user's home, as with sudo
                    return None
                values = json.loads(file.read())
            nodes = tuple(KeptNode(**each) for each in values["nodes"])
            return cls(**{each.name: values[each.name] for each in fields(cls) if each.name != "nodes"}, nodes=nodes)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the pool is then started anew, and its old nodes end by their lease

    def with_node(self, node: KeptNode) -> KeptPool:
        """The same with this node, in the place of the one with its index."""
        others = [each for each in self.nodes if each.index != node.index]
        return replace(self, nodes=tuple(sorted((*others, node), key=lambda each: each.index)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a pool.

    Attributes:
        pid: number of the process.
        program: what it runs.
        since: when it got the pool, as a time of day.
    """

    pid: int
    program: str
    since: str

    def __str__(self) -> str:
        return f"{self.program} (process {self.pid}, since {self.since})"


class PoolLock:
    """The claim of this process on a pool's name. The kernel lets go of it when the process ends, however it ends.

    Args:
        folder: the pool's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle: int | None = None

    def acquire(self, *, wait: bool, holder: Holder | None = None) -> bool:
        """Claim the name; False if another client has it and this one does not wait.

        Args:
            wait: whether to block until it is free; Ctrl-C gets through.
            holder: who claims it, for those that come later; None for a claim of a moment.
        """
        while True:
            try:
                self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise PoolError(
                    f"Pool {self._folder.name!r} cannot be kept: its record is in {self._folder.parent}, which cannot "
                    f"be written to ({error.strerror}). Set HOME or XDG_STATE_HOME to a directory of yours."
                ) from error
            try:
                handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                continue  # the pool has just ended
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if self._is_current(handle):
                    break
            except BlockingIOError:
                os.close(handle)
                return False
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # its pool ended while this one waited
        self._handle = handle
        if holder is not None:
            os.truncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(holder)).encode(), 0)
        return True

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), (self._folder / "lock").stat())
        except FileNotFoundError:
            return False

    def holder(self) -> Holder | None:
        """Who has the pool; None if that cannot be read at this moment."""
        try:
            return Holder(**json.loads((self._folder / "lock").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def release(self) -> None:
        """Let the next client have the pool."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # a process that was just forked may still have a copy
            self.let_go()

    def let_go(self) -> None:
        """In a forked process: close its copy of the claim, which stays with the process that it was forked from."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)

    def remove(self) -> None:
        """Remove the pool's directory, while this process has it; the next client makes it anew."""
        shutil.rmtree(self._folder, ignore_errors=True)


def pool_folder(name: str) -> Path:
    """The directory of the pool with this name, whether or not it is there.

    Raises:
        ConfigError: this cannot be the name of a pool.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"name= takes at most 41 letters, digits, '-', '_' and '.', a letter or digit first; found {name!r}."
        )
    return pools_folder() / name


def pools_folder() -> Path:
    """Where the records of pools with names are."""
    return state_folder() / "pools"


def pool_records() -> Iterator[tuple[Path, KeptPool]]:
    """The records of all of this user's pools with names, with their directories."""
    for path in sorted(pools_folder().glob("*/pool.json")):
        record = KeptPool.read(path.parent)
        if record is not None:
            yield path.parent, record
