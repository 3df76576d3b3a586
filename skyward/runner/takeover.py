"""Hands a node of a kept pool to one client after another: one at a time, each with fresh worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skyward.model.instance import WORK_FOLDER
from skyward.runner.children import Child
from skyward.runner.clients import Client
from skyward.system import threading
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, encode

_KILLED_S = 5.0  # how long killed processes may take to end


class Takeover:
    """The client that has the node, and the steps to hand it to the next one.

    Args:
        changed: the agent's condition; its lock guards the children.
        children: the worker processes as they are now.
        clean: removes what a client left behind besides worker processes; returns a description of what it cannot
            remove, or "".
        set_lease: sets how many seconds the node lives without a client, counted from now.
        fail: ends the node with the given reason.

    Attributes:
        is_kept: whether the node is waiting for its next client.
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
        self.is_kept = False  # no worker runs until the next client takes the node
        self._holder: Client | None = None  # stays when it disconnects: only KEEP leaves the node to another
        self._is_leaving = False  # from KEEP until the workers have ended
        self._stopped = False
        self._ended: set[int] = set()  # workers that have ended since KEEP

    def take(self, client: Client, order: Mapping[str, Any], move: Callable[[str], None]) -> None:
        """Assign the node to a client, and send it the workers' addresses once they listen. Blocks until then.

        Args:
            client: the requesting client.
            order: `lease_s`; `compute_pool`, the node's place; `environment`: the complete environment of the workers,
                None to leave it unchanged.
            move: stores the node's place.
        """
        environment, lease_s = order["environment"], float(order["lease_s"])
        with self._changed:
            if self._stopped:
                return
            if self._holder is not None or self._is_leaving:
                client.post(Frame(Kind.TAKEN, 0, encode({"refused": "another client has the node, or had it last"})))
                return
            self._holder = client
            if environment is not None:
                os.environ.clear()
                os.environ.update(environment)
        try:
            move(str(order["compute_pool"]))
        except BaseException:
            with self._changed:
                self._holder = None
            raise
        with self._changed:
            self._set_lease(lease_s)
            self.is_kept = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._holder is not client or self._stopped or self._all_listen())
            if self._holder is client and not self._stopped:
                workers = [[child.start.generation, child.address] for child in self._children()]
                client.post(Frame(Kind.TAKEN, 0, encode({"workers": workers})))

    def release(self, client: Client) -> None:
        """Release the node from its client; must be followed by `keep`.

        Raises:
            ValueError: the client does not have the node.
        """
        with self._changed:
            if self._holder is not client:
                raise ValueError("KEEP from a client that does not have the node")
            self._holder, self._is_leaving = None, True
            self._ended.clear()

    def keep(self, client: Client, keep_s: float, grace_s: float) -> None:
        """End the previous client's workers within the grace period, clean up, and notify that client."""
        with self._changed:
            children = tuple(self._children())
        if grace_s > 0:
            for child in children:
                child.ask_exit(grace_s)
            self._wait_ended(len(children), grace_s)
        for child in children:
            child.kill()
        problem = "" if self._wait_ended(len(children), _KILLED_S) else "its workers do not end."
        if problem := problem or self._clean():
            self._fail(f"what its last client left cannot be removed: {problem}")
            return
        with self._changed:
            if self._stopped:
                return
            self.is_kept, self._is_leaving = True, False
            for child in children:
                child.address = None
            self._set_lease(keep_s)
            client.post(Frame(Kind.KEPT, 0))

    def wait_start(self, worker: int) -> None:
        """Block until a client takes the node if the last one has left it. Called with the lock held."""
        while (self._is_leaving or self.is_kept) and not self._stopped:
            self._ended.add(worker)
            self._changed.notify_all()
            self._changed.wait()

    def stop(self) -> None:
        """Unblock all waiting threads because the node is ending. Called with the lock held."""
        self._stopped = True
        self._changed.notify_all()

    def _all_listen(self) -> bool:
        return all(child.address for child in self._children())

    def _wait_ended(self, count: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopped or len(self._ended) == count, timeout_s)


def cleaner(reset: str, run_dir: Path) -> Callable[[], str]:
    """Return the function that removes a client's traces according to `RunnerSettings.reset`, and returns a problem or
    "".
    """
    if reset == "container":
        return container_cleaner()
    return folder_cleaner(run_dir / WORK_FOLDER) if reset else str


def folder_cleaner(folder: Path) -> Callable[[], str]:
    """Return a function that empties a working directory, all that a node has to itself if it is a plain process."""
    from shutil import rmtree  # most nodes need neither this nor the cleaning of containers

    def clean() -> str:
        for path in folder.iterdir():
            try:
                rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            except OSError as error:
                return f"{path} cannot be removed ({error.strerror})."
        return ""

    return clean


def container_cleaner() -> Callable[[], str]:
    """Return a function that restores this process's container to its present state.

    It covers processes, files, mounts and shared memory.
    """
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
