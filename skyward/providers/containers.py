"""Nodes as containers of a Docker engine, wherever that engine is: what `sky.Docker` and `sky.SSH` share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from skyward.engine import Container, ContainerSpec, Engine, Watch
from skyward.engine.container import ACCOUNTS
from skyward.errors import ImageError, PoolClosedError, ProviderError
from skyward.model.rights import ACCOUNT, ACCOUNT_ID, HOME, WORK_DIR, Rights
from skyward.providers.base import Announcement, Exit, Launch
from skyward.providers.output import NodeOutput, node_exit, start_failure
from skyward.providers.owner import USER, Owner, current_user
from skyward.runner.config import DISMISS
from skyward.system import socket, threading, time
from skyward.system.futures import ThreadPoolExecutor

POOL, NODE, OWNER, OWNER_ID = "skyward.pool", "skyward.node", "skyward.owner", "skyward.owner-id"
RUN_DIR = "/run/skyward"  # where a container sees its node's directory
COMMAND = ("/opt/venv/bin/python", "-m", "skyward.runner")
_log = logging.getLogger(__name__)
_END_NEWS_S = 2.0  # how long after the last byte of its output an engine may take to say how a container ended
_DISMISSED_S = 3.0  # how long a node may take to end when it is told to
_LOOK_S = 0.05
_FIRST_LOOK_S = 3.0  # a node that has not ended by then may have done so on an engine that cannot tell
_GIB = 1024**3


class Place(Protocol):
    """A node's directory, on whichever machine it is."""

    def dial(self, address: str) -> socket.socket:
        """A connected socket to an address that the node announced."""
        ...

    def remove(self) -> None:
        """Remove the directory; nothing happens if it is gone."""
        ...

    def is_gone(self) -> bool:
        """Whether its machine is lost, so that nothing can be asked or removed there."""
        ...

    def why_gone(self) -> str:
        """Why nothing can be known of the node any more, to complete "Node 1 ..."; "" where nobody knows."""
        ...


class PoolContainers:
    """The containers of a pool on one engine: the events that tell of their ends, and a gate against late starts.

    Args:
        pool: identifier of the pool.
        engine: the engine.
        rights: what their programs may do.
        client: user and group id of this client on the engine's machine.
        keep: writes a small file that containers can mount, on the engine's machine, until the pool ends; its path.
    """

    def __init__(
        self, pool: str, engine: Engine, rights: Rights, client: tuple[int, int], keep: Callable[[bytes], Path]
    ) -> None:
        self.pool, self.engine = pool, engine
        self._rights, self._client, self._keep = rights, client, keep
        self._image_lock = threading.Lock()
        self._images: dict[str, _OfImage] = {}
        self._gate = threading.Condition()
        self._starting, self._closed = 0, False
        self.watch: Watch = engine.watch({POOL: pool})

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around each start, so that closing neither misses a container being made nor is followed by another."""
        with self._gate:
            if self._closed:
                raise PoolClosedError(f"Pool {self.pool} is ending; no node of it can be started.")
            self._starting += 1
        try:
            yield
        finally:
            with self._gate:
                self._starting -= 1
                self._gate.notify_all()

    def run(
        self,
        launch: Launch,
        directory: Path,
        gpus: int | tuple[int, ...] | None,
        labels: Mapping[str, str] | None = None,
        machine_bytes: int | None = None,
    ) -> Container:
        """Start the container of a node whose directory is there.

        Raises:
            EngineError: the engine refuses; nothing is left.
            ProviderError: the launch names no image.
            ImageError: the engine has another image by its name than the one that was delivered.
        """
        of_image = self._of_image(launch)
        self._check_image(launch, of_image.reference)
        owner = Owner.of(os.getpid())
        own = {POOL: launch.pool, NODE: str(launch.node), USER: current_user()}
        own |= {OWNER: owner.for_people, OWNER_ID: owner.text}
        return self.engine.run(
            ContainerSpec(
                image=of_image.reference,
                command=COMMAND,
                name=launch.name,
                labels={**own, **(labels or {})},
                env={
                    **launch.env,
                    "COMPUTE_POOL": launch.compute_pool,
                    "SKYWARD_RUNNER": launch.runner,
                    "SKYWARD_RUN_DIR": RUN_DIR,
                },
                mounts=((directory, RUN_DIR),),
                accounts=of_image.accounts,
                working_dir=of_image.working_dir,
                user=of_image.user,
                privileges=self._rights.privileges,
                gpus=gpus,
                cpus=launch.cpus,
                memory_bytes=None if launch.memory_gb is None else int(launch.memory_gb * _GIB),
                machine_bytes=machine_bytes,
                mounts_file_systems=launch.mounts,
                quiet=launch.quiet,
            )
        )

    def shut(self) -> None:
        """Let no further container be started, and wait for those being made."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._starting == 0, timeout=30)

    def close(self) -> None:
        """Remove all containers of the pool, and stop watching.

        Raises:
            EngineError: the engine is gone or refuses.
        """
        self.shut()
        with ExitStack() as last:
            last.callback(self.engine.close_idle)
            last.callback(self.watch.close)
            remove_all(self.engine, self.pool)

    def owner_of(self, launch: Launch) -> int | None:
        """Number of the user that a node's programs run as, and that its directory is to belong to.

        None where only the image knows the number, or this client may not give files away.

        Raises:
            ProviderError: the launch names no image.
        """
        number = self._of_image(launch).runs_as.partition(":")[0]
        known = number.isdecimal() and (self._client[0] == 0 or int(number) == self._client[0])
        return int(number) if known else None

    def _of_image(self, launch: Launch) -> _OfImage:
        """What follows from the image of a launch; asked for once."""
        image = launch.image
        if image is None:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} has no image, and this provider runs images."
            )
        with self._image_lock:
            if image not in self._images:
                config = (self.engine.image(image) or {}).get("Config") or {}
                user = user_of(self._rights, config.get("User") or "", self._client, mounts=launch.mounts)
                runs_as = user or config["User"]
                self._images[image] = _OfImage(
                    reference=image,
                    # an empty one: at / every top-level directory would be importable as a package
                    working_dir=config.get("WorkingDir") or WORK_DIR,
                    user=user,
                    runs_as=runs_as,
                    accounts=self._accounts(image, runs_as),
                )
            return self._images[image]

    def _check_image(self, launch: Launch, tag: str) -> None:
        """See that the engine has the image that is meant."""
        from skyward.build.contents import is_known, known_contents  # Local() never needs the build room
        from skyward.providers.images import facts_of

        found = self.engine.image(tag)
        if found and known_contents(tag) and not is_known(tag, facts_of(found)):
            raise ImageError(
                f"Node {launch.node} of pool {launch.pool} was not started: the Docker engine at {self.engine.url} has "
                f"another image as {tag} ({found['Id'][:19]}) than the one that was delivered there. Something else "
                "moves that tag; open the pool again, which replaces the image."
            )

    def _accounts(self, image: str, user: str) -> Path | None:
        """A file of the image's accounts in which a number that it does not know has one: many libraries look it up."""
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
class _OfImage:
    """What follows from an image for its containers.

    Attributes:
        reference: of the image.
        working_dir: where they start.
        user: whom their programs are to run as, None for the user that the image names.
        runs_as: whom they do run as.
        accounts: file that stands in for the image's accounts, None for its own.
    """

    reference: str
    working_dir: str
    user: str | None
    runs_as: str
    accounts: Path | None


def user_of(rights: Rights, image_user: str, client: tuple[int, int] = (0, 0), *, mounts: bool = False) -> str | None:
    """Whom a container's programs run as, None for the user that its image names.

    That is the client's own user, whom what they leave in shared directories then belongs to. Where that is root, or
    nothing is shared, it is the user that skyward's images have. To mount file systems takes root: fusermount3 helps
    other users only where the machine lets them open /dev/fuse.
    """
    if rights.user is not None:
        return rights.user
    if mounts:
        return _joined((0, 0))
    if image_user:
        return None
    return _joined(client if client[0] else (ACCOUNT_ID, ACCOUNT_ID))


def _joined(ids: tuple[int, int]) -> str:
    return f"{ids[0]}:{ids[1]}"


class ContainerNode:
    """A node in its container."""

    channel = b""  # unix sockets; to another machine SSH's, see SECURITY.md

    def __init__(self, containers: PoolContainers, launch: Launch, container: Container, place: Place) -> None:
        self._containers, self._container, self._place = containers, container, place
        self._who = f"Node {launch.node} of pool {launch.pool} (container {launch.name})"
        self._output = NodeOutput(container.output(), launch.name)

    def wait_ready(self, timeout_s: float) -> Announcement:
        """Block until the runner has announced itself; see `Node`."""
        announcement = self._output.wait_announcement(timeout_s)
        if announcement:
            return announcement
        ended = self.wait_exit(_END_NEWS_S) if self._output.ended else None
        raise start_failure(self._who, ended, timeout_s, self._output.tail)

    def connect(self, address: str) -> socket.socket:
        """A connected, blocking socket to an address the node announced."""
        connected = self._place.dial(address)
        connected.settimeout(None)
        return connected

    def wait_exit(self, timeout_s: float) -> Exit | None:
        """How the container ended, None if it still runs after `timeout_s`, or at once where the engine is frozen."""
        ending = self._containers.watch.ending(self._container.id, min(timeout_s, _FIRST_LOOK_S))
        if ending is None and timeout_s > _FIRST_LOOK_S and not self._containers.engine.is_frozen():
            ending = self._containers.watch.ending(self._container.id, timeout_s - _FIRST_LOOK_S)
        if ending is None:
            return None
        self._output.join(_END_NEWS_S)
        if ending.code is None:
            gone = f"is lost from sight: the Docker engine at {self._containers.engine.url} is gone"
            return Exit(code=None, text=self._place.why_gone() or gone, log=self._output.tail)
        return node_exit(ending.code, oom=ending.oom, log=self._output.tail)

    def remove(self) -> None:
        """End the container at once, wait until it is gone, and remove the node's directory."""
        if not self._place.is_gone():
            self._containers.engine.remove(self._container.id)
        self._output.join(_END_NEWS_S)
        self._place.remove()


def remove_all(engine: Engine, pool: str) -> None:
    """Remove all containers of a pool, several at a time; the first failure is raised when all have been tried."""
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
    """Remove all containers of another client's pool, in a way by which that client knows not to replace them."""
    for container in engine.containers(f"{POOL}={pool}", state="running"):
        engine.signal(container["Id"], DISMISS.name)
    deadline = time.monotonic() + _DISMISSED_S
    while engine.containers(f"{POOL}={pool}", state="running") and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    remove_all(engine, pool)


def describe(found: Sequence[Mapping[str, Any]], host: str = "") -> list[dict[str, Any]]:
    """Containers of pools as an engine lists them, in the form of `Provider.find`."""
    return [
        {
            "pool": each["Labels"][POOL],
            "node": int(each["Labels"].get(NODE, -1)),
            "name": each["Names"][0].lstrip("/") if each["Names"] else "",
            "state": each["State"],
            "owner": each["Labels"].get(OWNER, ""),
            "user": each["Labels"].get(USER, ""),
            "image": each["Image"],
            "id": each["Id"],
            **({"host": host} if host else {}),
        }
        for each in found
    ]
