"""Nodes as containers started by a pool, on the Docker engine of this or another machine."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from skyward.engine import Container, ContainerSpec, Engine, Watch
from skyward.engine.container import ACCOUNTS
from skyward.errors import ImageError, PoolClosedError, ProviderError
from skyward.model.instance import DISMISS, ENV_VAR, RUN_DIR_VAR, SETTINGS_VAR
from skyward.model.resource import Resource
from skyward.model.rights import ACCOUNT, ACCOUNT_ID, HOME, WORK_DIR, Rights
from skyward.nodes.node import Exit, Launch, RunnerNode, exit_of
from skyward.nodes.process_id import USER, ProcessId, current_user
from skyward.system import socket, threading, time
from skyward.system.futures import ThreadPoolExecutor
from skyward.wire.frames import dial

POOL, NODE, OWNER, OWNER_ID = "skyward.pool", "skyward.node", "skyward.owner", "skyward.owner-id"
RUN_DIR = "/run/skyward"  # the node's directory, as containers see it
COMMAND = ("/opt/venv/bin/python", "-m", "skyward.runner")
_log = logging.getLogger(__name__)
_DISMISSED_S = 3.0  # how long a dismissed node may take to end
_LOOK_S = 0.05
_GIB = 1024**3


def owner_labels(owner: ProcessId) -> dict[str, str]:
    """Return labels, or annotations, that identify the owner of a resource."""
    return {USER: current_user(), OWNER: owner.for_people, OWNER_ID: owner.text}


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run directory of a node on this machine; a subclass has one on another.

    Attributes:
        path: its path on that machine.
    """

    path: PurePath

    def dial(self, address: str) -> socket.socket:
        """Return a socket connected to an address that the node announced."""
        return dial(Path(self.path), address)

    def remove(self) -> None:
        """Remove the directory; does nothing if it does not exist."""
        shutil.rmtree(self.path, ignore_errors=True)

    def is_lost(self) -> bool:
        """Return whether its machine is lost, so that nothing can be done there."""
        return False

    def loss_reason(self) -> str:
        """Return what has happened to its machine, to complete "Node 1 ..."; "" if it is not lost."""
        return ""


class PoolContainers:
    """The containers of a pool on one engine. Starts and watches them; once the pool is ending, none can be started.

    Args:
        pool: identifier of the pool.
        engine: the engine.
        rights: the user and the capabilities that their programs have.
        client: user and group id of this client on the engine's machine.
        keep: writes a small file on the engine's machine, which containers can mount until the pool ends; returns its
            path.
    """

    def __init__(
        self, pool: str, engine: Engine, rights: Rights, client: tuple[int, int], keep: Callable[[bytes], Path]
    ) -> None:
        self.pool, self.engine = pool, engine
        self._rights, self._client, self._keep = rights, client, keep
        self._image_lock = threading.Lock()
        self._images: dict[str, _ImageSettings] = {}
        self._gate = threading.Condition()
        self._starts, self._closed = 0, False
        self.nodes: dict[int, tuple[str, RunDirectory]] = {}  # the latest container of each, and its directory
        self.watch: Watch = engine.watch({POOL: pool})

    def start(
        self,
        launch: Launch,
        make_directory: Callable[[int | None], RunDirectory],
        gpus: int | tuple[int | str, ...] | None,
        labels: Mapping[str, str] | None = None,
        machine_bytes: int | None = None,
    ) -> RunnerNode:
        """Start the container of one node.

        Args:
            launch: what to start.
            make_directory: creates the node's run directory, owned by the user number it is passed; None if only the
                image knows that number, or this client may not change the owner of files.
            gpus: GPUs of the node: their number, or their indexes.
            labels: further labels.
            machine_bytes: memory of the engine's machine, if that is another machine.

        Raises:
            EngineError: the engine refused; nothing is left behind.
            ProviderError: the launch has no image.
            ImageError: the engine's image of that name is not the one that was delivered.
            PoolClosedError: the pool is ending.
        """
        with self._starting():
            directory = make_directory(self._owner_of(launch))
            try:
                container = self._run(launch, directory, gpus, labels or {}, machine_bytes)
            except BaseException:
                directory.remove()
                raise
        self.nodes[launch.node] = (container.id, directory)
        process = ContainerProcess(self, container.id, container.output, launch.name, directory)
        return RunnerNode(launch, process)

    def about(self, node: int) -> Mapping[str, str]:
        """Return the data by which `adopt` finds a node."""
        container_id, directory = self.nodes[node]
        return {"directory": str(directory.path), "container": container_id}

    def adopt(self, launch: Launch, about: Mapping[str, Any], directory: RunDirectory, agent: str) -> RunnerNode:
        """Return a node whose container an earlier client has started, running or not."""
        container_id = str(about["container"])
        self.nodes[launch.node] = (container_id, directory)
        # its output goes to the client that started it
        process = ContainerProcess(self, container_id, lambda: iter(()), launch.name, directory)
        return RunnerNode(launch, process, agent)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Guard a start: closing waits for starts in progress and prevents further ones."""
        with self._gate:
            if self._closed:
                raise PoolClosedError(f"Pool {self.pool} is ending; no node of it can be started.")
            self._starts += 1
        try:
            yield
        finally:
            with self._gate:
                self._starts -= 1
                self._gate.notify_all()

    def _run(
        self,
        launch: Launch,
        directory: RunDirectory,
        gpus: int | tuple[int | str, ...] | None,
        labels: Mapping[str, str],
        machine_bytes: int | None,
    ) -> Container:
        settings = self._settings_of(launch)
        assert launch.image
        self._check_image(launch, launch.image)
        place = {ENV_VAR: launch.compute_pool, SETTINGS_VAR: launch.runner, RUN_DIR_VAR: RUN_DIR}
        own = {POOL: launch.pool, NODE: str(launch.node), **owner_labels(ProcessId.of(os.getpid()))}
        return self.engine.run(
            ContainerSpec(
                image=launch.image,
                command=COMMAND,
                name=launch.name,
                labels={**own, **labels},
                env={**launch.env, **place},
                mounts=((Path(directory.path), RUN_DIR),),
                accounts=settings.accounts,
                working_dir=settings.working_dir,
                user=settings.user,
                privileges=self._rights.privileges,
                gpus=gpus,
                cpus=launch.cpus,
                memory_bytes=None if launch.memory_gb is None else int(launch.memory_gb * _GIB),
                machine_bytes=machine_bytes,
                mounts_file_systems=launch.mounts,
            )
        )

    def shut(self) -> None:
        """Prevent further starts, and wait for those in progress."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._starts == 0, timeout=30)

    def close(self) -> None:
        """Remove all containers of the pool, and stop watching them.

        Raises:
            EngineError: the engine cannot be reached or refused.
        """
        self.shut()
        with ExitStack() as last:
            last.callback(self.watch.close)
            remove_all(self.engine, self.pool)

    def let_go(self) -> None:
        """Keep all containers running, and stop watching them."""
        self.shut()
        self.watch.close()

    def _owner_of(self, launch: Launch) -> int | None:
        """Return the number of the user that is to own a node's directory; see `start`."""
        number = self._settings_of(launch).user.partition(":")[0]
        known = number.isdecimal() and (self._client[0] == 0 or int(number) == self._client[0])
        return int(number) if known else None

    def _settings_of(self, launch: Launch) -> _ImageSettings:
        """Return how containers of a launch's image are run; the engine is queried once per image."""
        image = launch.image
        if image is None:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} has no image, and this provider runs images."
            )
        with self._image_lock:
            if image not in self._images:
                config = (self.engine.image(image) or {}).get("Config") or {}
                own, rootless = config.get("User") or "", self.engine.is_rootless
                user = user_of(self._rights, own, self._client, mounts=launch.mounts, rootless=rootless) or own
                # a directory that is empty: in / every top-level directory would be importable as a package
                work = config.get("WorkingDir") or WORK_DIR
                self._images[image] = _ImageSettings(work, user, self._accounts(image, user))
            return self._images[image]

    def _check_image(self, launch: Launch, tag: str) -> None:
        """Raise ImageError if the engine's image is not the one that was delivered."""
        from skyward.builder.store import facts_of, is_known, known_contents  # not loaded for sky.Local()

        found = self.engine.image(tag)
        if found and known_contents(tag) and not is_known(tag, facts_of(found)):
            raise ImageError(
                f"Node {launch.node} of pool {launch.pool} was not started: the Docker engine at {self.engine.url} has "
                f"another image as {tag} ({found['Id'][:19]}) than the one that was delivered there. Something else "
                "moves that tag; open the pool again, which replaces the image."
            )

    def _accounts(self, image: str, user: str) -> Path | None:
        """Write a list of accounts with this user number if the image has none for it: many libraries look it up."""
        uid, _, gid = user.partition(":")
        if not uid.isdecimal() or int(uid) in (0, ACCOUNT_ID):
            return None
        known = [line for line in self.engine.read(image, ACCOUNTS).decode(errors="replace").splitlines() if line]
        if any(line.split(":")[2:3] == [uid] for line in known):
            return None
        others = [line for line in known if not line.startswith(f"{ACCOUNT}:")]
        own = f"{ACCOUNT}:x:{uid}:{gid if gid.isdecimal() else 0}::{HOME}:/bin/sh"
        return self._keep("".join(f"{line}\n" for line in (*others, own)).encode())


@dataclass(frozen=True, slots=True)
class _ImageSettings:
    """How containers of an image are run: where, as which user, with which file over the image's list of accounts."""

    working_dir: str
    user: str
    accounts: Path | None


def user_of(
    rights: Rights, image_user: str, client: tuple[int, int] = (0, 0), *, mounts: bool = False, rootless: bool = False
) -> str | None:
    """Return the user that a container's programs run as; None for the user set in its image.

    If neither the caller nor the image names one, it is the client's own user, who then owns files in shared
    directories; if that is root, or nothing is shared, it is the user of skyward's images. Mounting file systems
    requires root: fusermount3 serves other users only if the machine lets them open /dev/fuse. In containers of a
    rootless engine users are mapped: only root in the container is the client's user.
    """
    if rights.user is not None:
        return rights.user
    if image_user and not mounts:
        return None
    if mounts or rootless:
        return "0:0"
    user, group = client if client[0] else (ACCOUNT_ID, ACCOUNT_ID)
    return f"{user}:{group}"


class ContainerProcess:
    """A runner in a container.

    Args:
        containers: the pool's containers.
        container_id: of the container.
        output: reads the container's output.
        name: name of the node.
        directory: its run directory.
    """

    channel = b""  # no TLS: unix sockets, and SSH to other machines, see SECURITY.md

    def __init__(
        self,
        containers: PoolContainers,
        container_id: str,
        output: Callable[[], Iterator[bytes]],
        name: str,
        directory: RunDirectory,
    ) -> None:
        self._containers, self._id, self._directory = containers, container_id, directory
        self.output = output
        self.title = f"container {name}"

    def dial(self, address: str) -> socket.socket:
        """Return a socket connected to an address that the runner announced."""
        return self._directory.dial(address)

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the container ended; None if it still runs after `timeout_s`."""
        ending = self._containers.watch.ending(self._id, timeout_s)
        if ending is None:
            return None
        if ending.code is None:
            gone = f"is unreachable: the Docker engine at {self._containers.engine.url} is gone"
            return Exit(code=None, text=self._directory.loss_reason() or gone)
        return exit_of(ending.code, oom=ending.oom)

    def end(self) -> None:
        """Kill the container, wait until it has ended, and remove the node's directory."""
        if not self._directory.is_lost():
            self._containers.engine.remove(self._id)
        self._directory.remove()


def remove_all(engine: Engine, pool: str) -> None:
    """Remove all containers of a pool, several at a time; raise the first failure when all have been tried."""
    found = engine.containers(f"{POOL}={pool}")
    if not found:
        return
    with ThreadPoolExecutor(min(8, len(found)), thread_name_prefix="skyward-remove") as threads:
        tries = [threads.submit(engine.remove, container["Id"]) for container in found]
    failures = [error for error in (t.exception() for t in tries) if error]
    for error in failures:
        _log.warning("A container of pool %s could not be removed: %s", pool, error)
    if failures:
        raise failures[0]


def dismiss_all(engine: Engine, pool: str) -> None:
    """Remove all containers of another client's pool, with an exit status that prevents their replacement."""
    for container in engine.containers(f"{POOL}={pool}", state="running"):
        engine.signal(container["Id"], DISMISS)
    deadline = time.monotonic() + _DISMISSED_S
    while engine.containers(f"{POOL}={pool}", state="running") and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    remove_all(engine, pool)


def describe(found: Sequence[Mapping[str, Any]], host: str = "") -> list[Resource]:
    """Return containers of pools, as listed by an engine, in the format of `Provider.find`."""
    resources = [
        Resource(
            pool=each["Labels"][POOL],
            node=int(each["Labels"].get(NODE, -1)),
            name=each["Names"][0].lstrip("/") if each["Names"] else "",
            state=each["State"],
            owner=each["Labels"].get(OWNER, ""),
            user=each["Labels"].get(USER, ""),
            image=each["Image"],
            id=each["Id"],
        )
        for each in found
    ]
    for resource in resources if host else ():
        resource["host"] = host
    return resources
