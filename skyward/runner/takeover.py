"""Lets one client after another have a node whose pool is kept: one at a time, each with fresh worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skyward.model.instance import ENV_VAR, SETTINGS_VAR, WORK_FOLDER
from skyward.runner.children import Child
from skyward.runner.clients import Client
from skyward.system import threading
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, encode

_PATIENCE_S = 2.0  # how long a client waits for the one before it, whose end may just be on its way
_KILLED_S = 5.0  # how long killed processes may take to vanish
_OF_EACH_CLIENT = (ENV_VAR, SETTINGS_VAR)  # the place is told to the workers that run; the settings are the agent's


class Takeover:
    """Who has the node, and what it takes to give it to the next.

    Args:
        changed: the agent's condition; its lock guards the children.
        children: the worker processes as they are now.
        clean: removes what a client has left besides the workers' processes; what it cannot remove, or "".
        set_lease: sets how many seconds the node lives without a client, counted from now.
        fail: ends the node, and says why.

    Attributes:
        is_kept: whether the node waits for its next client.
    """

    def __init__(
        self,
        changed: threading.Condition,
        children: Callable[[], Sequence[Child]],
        clean: Callable[[], str],
        set_lease: Callable[[float], None],
        fail: Callable[[str], None],
    ) -> None:
        self._changed, self._children, self._clean = changed, children, clean
        self._set_lease, self._fail = set_lease, fail
        self.is_kept = False
        self._holder: Client | None = None
        self._used = False  # whether a client may have used the workers that run
        self._resetting = False  # whether all workers are being ended; whoever sets it calls `_reset`
        self._stopped = False
        self._ended: set[int] = set()  # workers that have ended meanwhile

    def take(self, client: Client, order: Mapping[str, Any], move: Callable[[str], None]) -> None:
        """Give the node to a client, who is told of its workers once they listen. Blocks until then.

        Args:
            client: who asks.
            order: `lease_s`; `compute_pool`, the node's place; `environment`: that of the workers as a whole, None for
                the one that they have.
            move: notes the node's place.
        """
        environment = _checked(order["environment"])
        lease_s = float(order["lease_s"])
        with self._changed:
            free = self._changed.wait_for(lambda: self._stopped or self._is_free(), _PATIENCE_S)
            if self._stopped:
                return
            if not free:
                client.post(Frame(Kind.TAKEN, 0, encode({"refused": "another client has the node"})))
                return
            differs = environment is not None and _essence(environment) != _essence(os.environ)
            self._resetting = stale = self._used or differs
            self._holder, self._used, self.is_kept = client, True, False
            self._set_lease(lease_s)
            if environment is not None:
                os.environ.clear()
                os.environ.update(environment)
        try:
            move(str(order["compute_pool"]))
        except BaseException:
            with self._changed:
                self._holder, self._used = None, self._used and not stale
                self._allow_starts()
            raise
        if stale and not self._reset(0.0):
            return
        with self._changed:
            if stale:
                self._allow_starts()
                self._used = self._holder is client  # else it is gone, and has used nothing
            self._changed.wait_for(lambda: self._holder is not client or self._stopped or self._all_listen())
            if self._holder is client and not self._stopped:
                workers = [[child.start.generation, child.address] for child in self._children()]
                client.post(Frame(Kind.TAKEN, 0, encode({"workers": workers})))

    def release(self, client: Client) -> None:
        """Take the node back from its client; `keep` is to follow.

        Raises:
            ValueError: the client does not have the node.
        """
        with self._changed:
            if self._holder is not client:
                raise ValueError("KEEP from a client that does not have the node")
            self._holder, self._resetting = None, True

    def keep(self, client: Client, keep_s: float, grace_s: float) -> None:
        """End the workers of the client before, tell it, and wait for the next one with fresh workers."""
        if self._reset(grace_s):
            with self._changed:
                self._used, self.is_kept = False, True
                self._set_lease(keep_s)
                self._allow_starts()
                client.post(Frame(Kind.KEPT, 0))

    def left(self, client: Client) -> bool:
        """A client is gone; whether it has left workers behind, which `renew` ends."""
        with self._changed:
            if self._holder is not client:
                return False
            self._holder = None
            self._changed.notify_all()
            return not self._resetting and not self._stopped

    def renew(self) -> None:
        """End what a client has left that is gone without a word, and start fresh workers. Blocks until then."""
        with self._changed:
            if self._stopped or not self._used or not self._is_free():
                return  # somebody has taken the node already
            self._resetting = True
        if self._reset(0.0):
            with self._changed:
                self._used = False
                self._allow_starts()

    def wait_start(self, worker: int) -> None:
        """Block while all workers are being ended: none is started again before that. Called with the lock held."""
        while self._resetting and not self._stopped:
            self._ended.add(worker)
            self._changed.notify_all()
            self._changed.wait()

    def stop(self) -> None:
        """The node ends. Called with the lock held."""
        self._stopped = True
        self._changed.notify_all()

    def _is_free(self) -> bool:
        return self._holder is None and not self._resetting

    def _all_listen(self) -> bool:
        return all(child.address for child in self._children())

    def _allow_starts(self) -> None:
        """Let workers be started again. Called with the lock held."""
        for child in self._children() if self._resetting else ():
            child.address = None  # until fresh ones are in their places, nobody listens there
        self._resetting = False
        self._ended.clear()
        self._changed.notify_all()

    def _reset(self, grace_s: float) -> bool:
        """End all workers within the grace, and clean up; False where the node ends."""
        with self._changed:
            children = tuple(self._children())
        if grace_s > 0:
            for child in children:
                child.ask_exit(grace_s)
            self._wait_ended(len(children), grace_s)
        for child in children:
            child.kill()
        problem = "" if self._wait_ended(len(children), _KILLED_S) else "its workers do not end."
        problem = problem or self._clean()
        if problem:
            self._fail(f"what its last client left cannot be removed: {problem}")
        return not problem and not self._stopped

    def _wait_ended(self, count: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopped or len(self._ended) == count, timeout_s)


def _checked(environment: object) -> dict[str, str] | None:
    """The environment of a message, which a process can be started with.

    Raises:
        ValueError: it is none.
    """
    if environment is None:
        return None
    if not isinstance(environment, dict):
        raise ValueError("the environment is not an object")
    for name, value in environment.items():
        if not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise ValueError(f"the environment has {name!r}, which no process can have")
    return environment


def _essence(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a process has to be started with."""
    return {name: value for name, value in environment.items() if name not in _OF_EACH_CLIENT}


def cleaner(reset: str, run_dir: Path) -> Callable[[], str]:
    """What removes the traces of a client, as `RunnerSettings.reset` says; it gives a problem in words, or ""."""
    if reset == "container":
        return container_cleaner()
    return folder_cleaner(run_dir / WORK_FOLDER) if reset else str


def folder_cleaner(folder: Path) -> Callable[[], str]:
    """Empties a working directory: all that a node has to itself where it is a process of the machine."""
    from shutil import rmtree  # most nodes need neither it nor what cleans containers

    def clean() -> str:
        for path in folder.iterdir():
            try:
                rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            except OSError as error:
                return f"{path} cannot be removed ({error.strerror})."
        return ""

    return clean


def container_cleaner() -> Callable[[], str]:
    """Restores the container that this process runs in to what it is now: processes, files, mounts, shared memory."""
    from skyward.runner.entry import container

    known, mounts = container.files(), set(container.mounts())

    def clean() -> str:
        try:
            container.end_processes()
            container.remove_files(known, keep=())
            container.remove_ipc()
        except container.NotCleanError as error:
            return str(error)
        left = sorted(set(container.mounts()) - mounts)
        return f"{left[0]} is still mounted." if left else ""

    return clean
