"""Containers: their specification, limits, GPUs and shared memory; their creation, output and ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from skyward.engine.failures import engine_call

ACCOUNTS = "/etc/passwd"
_FRAME_HEADER = 8  # one byte for the stream, three of padding, four for the length
_OUT_OF_MEMORY_NEWS_S = 0.5  # time after SIGKILL in which the engine may report out of memory
_SIGKILLED = 137
# Limits to request from engines, each for soft and hard: unlimited locked memory (pinned and RDMA buffers of GPU
# frameworks), a stack of 64 MiB (deep native recursion in kernel compilers), and as many files as usual systems allow
# (data loaders pass tensors by descriptor; some programs close every possible one at start, so not more).
LIMITS: Mapping[str, int] = MappingProxyType({"memlock": -1, "stack": 64 * 1024**2, "nofile": 1024 * 1024})
_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The specification of a container. It shares the host's network, has an init process and is removed when it ends.

    Attributes:
        image: reference of an image the engine has.
        command: the command to run, instead of the image's own.
        name: unique name on the engine.
        labels: labels by which it is found again.
        env: environment in addition to the image's.
        mounts: directories of this machine and their paths in the container.
        accounts: a file of this machine that replaces the image's /etc/passwd; None for the image's own.
        working_dir: working directory of the command; created if it does not exist.
        gpus: number of NVIDIA GPUs, or their indexes or UUIDs; None for none.
        cpus: limit in CPUs; None for no limit.
        memory_bytes: limit of memory; None for no limit.
        machine_bytes: memory of the engine's machine; None for this machine.
        user: user of its programs, by name or number, "user:group"; None for the image's own.
        privileges: capabilities that its programs can have, or gain through programs installed for that; if empty, none
            can be gained. "default" for the engine's default ones.
        mounts_file_systems: whether it may mount file systems in user space (FUSE).
        sees_processes: whether it shares the process namespace of the engine's machine.
    """

    image: str
    command: tuple[str, ...]
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[tuple[Path, str], ...] = ()
    accounts: Path | None = None
    working_dir: str | None = None
    gpus: int | tuple[int | str, ...] | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    machine_bytes: int | None = None
    user: str | None = None
    privileges: tuple[str, ...] | Literal["default"] = ()
    mounts_file_systems: bool = False
    sees_processes: bool = False


def shm_bytes(memory_bytes: int | None) -> int:
    """Return the size of a node's /dev/shm: half of the memory it may use, at most 64 GiB.

    With Docker's 64 MB, data loaders and collectives end with a bus error. Half is the size of a machine's own /dev/shm
    in Linux: pages count only when used. With the limit, a leak on a large machine fills /dev/shm, not the machine.
    """
    memory = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // 2, 64 * _GIB)


def create(api: Any, spec: ContainerSpec, limits: Mapping[str, int]) -> str:
    """Create a container without starting it, and return its id."""
    made = api.create_container(
        spec.image,
        list(spec.command),
        name=spec.name,
        labels=dict(spec.labels),
        environment=dict(spec.env),
        working_dir=spec.working_dir,
        user=spec.user,
        host_config=_host_config(api, spec, limits),
    )
    return str(made["Id"])


def attach(api: Any, container_id: str) -> Any:
    """Return a stream of the future output of a created container.

    It is attached before the start, because a container that removes itself takes its log with it. Without the Upgrade
    headers of the SDK's own attach, and read through the HTTP response, nothing is lost (docker-py#3332).
    """
    url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/attach"
    params = {"stream": 1, "stdout": 1, "stderr": 1}
    answer = api.post(url, params=params, stream=True, timeout=None)
    answer.raise_for_status()
    return answer


def _host_config(api: Any, spec: ContainerSpec, limits: Mapping[str, int]) -> Any:
    from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

    # of type "bind", so that a directory the engine does not see is an error instead of being created empty
    mounts = [Mount(target=target, source=str(source), type="bind") for source, target in spec.mounts]
    if spec.accounts is not None:
        mounts.append(Mount(target=ACCOUNTS, source=str(spec.accounts), type="bind", read_only=True))
    wishes: dict[str, Any] = {}
    if spec.gpus is not None:
        which = {"count": spec.gpus} if isinstance(spec.gpus, int) else {"device_ids": [str(i) for i in spec.gpus]}
        wishes["device_requests"] = [DeviceRequest(**which, capabilities=[["gpu", "compute", "utility"]])]
    if spec.cpus is not None:
        wishes["nano_cpus"] = int(spec.cpus * 1e9)
    if spec.memory_bytes is not None:  # including swap, so that a node over its limit ends instead of slowing down
        wishes |= {"mem_limit": spec.memory_bytes, "memswap_limit": spec.memory_bytes}
    if spec.mounts_file_systems:
        wishes["devices"] = ["/dev/fuse"]
    if spec.sees_processes:
        wishes["pid_mode"] = "host"
    return api.create_host_config(
        network_mode="host",
        init=True,
        auto_remove=True,
        mounts=mounts,
        shm_size=shm_bytes(spec.memory_bytes or spec.machine_bytes),
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in limits.items()],
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "10m", "max-file": "2"}),
        **wishes,
        **_rights(spec),
    )


def _rights(spec: ContainerSpec) -> dict[str, Any]:
    """Drop all capabilities and ways to gain them, except the requested ones."""
    if spec.privileges == "default":
        rights: dict[str, Any] = {"cap_add": [], "security_opt": []}
    else:
        rights = {"cap_drop": ["ALL"], "cap_add": list(spec.privileges), "security_opt": []}
    if spec.mounts_file_systems:  # required by mount(2), which AppArmor's own profile forbids
        rights["cap_add"] = sorted({*rights["cap_add"], "SYS_ADMIN"})
        rights["security_opt"] = ["apparmor=unconfined"]
    elif not spec.privileges:
        rights["security_opt"] = ["no-new-privileges"]
    return rights


class Container:
    """A started container and its output."""

    def __init__(self, engine: str, container_id: str, name: str, stream: Any) -> None:
        self.id, self.name = container_id, name
        self._engine, self._stream = engine, stream

    def output(self) -> Iterator[bytes]:
        """Yield its output on both streams from the first byte on, until the container or the engine ends.

        It has to be read: a container without a reader blocks once the engine's buffer (1 MB) is full.
        """
        with engine_call(f"read the output of container {self.name}", self._engine):
            try:
                while len(header := self._stream.raw.read(_FRAME_HEADER)) == _FRAME_HEADER:
                    yield self._stream.raw.read(int.from_bytes(header[4:], "big"))
            finally:
                self._stream.close()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended. `code` is None, for unknown, if the engine itself has ended."""

    code: int | None
    oom: bool = False


class Watch:
    """Records the end of every container with the given labels, from its creation on."""

    def __init__(self, api: Any, engine: str, labels: Mapping[str, str]) -> None:
        self._news = threading.Condition()
        self._codes: dict[str, int] = {}
        self._short_of_memory: set[str] = set()
        self._destroyed: set[str] = set()
        self._over = False
        with engine_call("report its events", engine):
            self._events = api.events(
                decode=True,
                filters={
                    "type": "container",
                    "label": [f"{name}={value}" for name, value in labels.items()],
                    # Podman filters by its own event names (died, remove)
                    "event": ["die", "died", "oom", "destroy", "remove"],
                },
            )
        self._thread = threading.Thread(target=self._follow, name="skyward-engine-events", daemon=True)
        self._thread.start()

    def ending(self, container_id: str, timeout_s: float) -> Ending | None:
        """Return how a container ended; None if it is still running after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            if not self._news.wait_for(lambda: container_id in self._codes or self._over, timeout_s):
                return None
            code = self._codes.get(container_id)
            if code == _SIGKILLED:
                # the two events come in either order; after the container's removal no other follows
                doubt_s = max(0.0, min(_OUT_OF_MEMORY_NEWS_S, deadline - time.monotonic()))
                self._news.wait_for(
                    lambda: container_id in self._short_of_memory | self._destroyed or self._over, doubt_s
                )
            return Ending(code, container_id in self._short_of_memory)

    def close(self) -> None:
        """Stop watching."""
        self._events.close()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        # a dead engine ends this stream without an exception
        for event in self._events:
            container_id = event["Actor"]["ID"]
            with self._news:
                if event["Action"] in ("die", "died"):
                    self._codes[container_id] = int(event["Actor"]["Attributes"]["exitCode"])
                elif event["Action"] == "oom":
                    self._short_of_memory.add(container_id)
                else:
                    self._destroyed.add(container_id)
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()
