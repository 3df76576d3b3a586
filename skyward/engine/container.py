"""Containers: their specification, limits, GPUs and shared memory; their creation, output and ends.

An engine may not be able to grant all limits; what it can is read from its process, and learnt from its refusals.

What is mounted into the container of a client that runs in one itself, with the socket of the engine that started it,
has another path on the engine's machine. What is not mounted lies in that container's own layer, whose place some
engines tell.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from skyward.engine.failures import engine_call

ACCOUNTS = "/etc/passwd"
_FRAME_HEADER = 8  # one byte for the stream, three of padding, four for the length
_MOUNTS = Path("/proc/self/mountinfo")
# files that engines give each container
_OF_ENGINE = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) /etc/")
_OUT_OF_MEMORY_NEWS_S = 0.5  # how long after a death by SIGKILL the engine may still say that it was for memory
_SIGKILLED = 137
UNLIMITED = -1
_CAP_SYS_RESOURCE = 24
_STACK_BYTES = 64 * 1024**2
_MOST_FILES = 1024 * 1024  # some programs close every possible descriptor when they start: no more than systems give
_GIB = 1024**3
_HOOK = "nvidia-container-runtime-hook"  # an engine that finds it on its PATH at start can serve `--gpus`


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The specification of a container. It shares the host's network, has an init process and vanishes when it ends.

    Attributes:
        image: reference of an image the engine has.
        command: what it runs, instead of the image's own command.
        name: unique on the engine.
        labels: labels by which it is found again.
        env: environment in addition to the image's.
        mounts: directories of this machine and where the container sees them.
        accounts: a file of this machine that stands in for the image's /etc/passwd; None for the image's own.
        working_dir: where the command starts; made if it is not there.
        gpus: number of NVIDIA GPUs, or their indexes or UUIDs; None for none.
        cpus: limit in CPUs; None for no limit.
        memory_bytes: limit of memory; None for no limit.
        machine_bytes: memory of the engine's machine; None if that is this one.
        user: whom its programs run as, by name or number, "user:group"; None for the image's own.
        privileges: capabilities that its programs can have, or gain by programs that are installed to give them; with
            none, nothing can gain any. "default" for what the engine gives by itself.
        mounts_file_systems: whether it may mount file systems in user space (FUSE).
        sees_processes: whether it has the process namespace of the engine's machine, not one of its own.
        quiet: whether nothing is said of limits that the engine may not raise.
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
    quiet: bool = False


def wanted_limits(engine_pid: int | None, proc: Path = Path("/proc")) -> Mapping[str, int]:
    """The limits to ask an engine for, by name, each for soft and hard.

    Locked memory without limit (pinned and RDMA buffers of GPU frameworks), a stack of 64 MiB (deep native recursion in
    compilers of kernels), as many files as the engine itself may open (data loaders pass tensors by descriptor).
    What the engine's process visibly cannot grant is left out.

    Args:
        engine_pid: process of the engine; None when unknown: then refusals tell.
        proc: where the process file system is mounted.
    """
    try:
        status = (proc / str(engine_pid) / "status").read_text()
        table = (proc / str(engine_pid) / "limits").read_text()
    except OSError:
        status = table = ""
    return limits_by(status, table)


def limits_by(status: str, table: str) -> Mapping[str, int]:
    """The same, from what the kernel says of an engine's process: its files `status` and `limits`, "" where unknown."""
    wanted = {"memlock": UNLIMITED, "stack": _STACK_BYTES}
    if not table:
        return MappingProxyType(wanted)
    files = _hard_limit(table, "Max open files")
    if files != UNLIMITED:
        wanted["nofile"] = min(files, _MOST_FILES)
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    may_raise = capabilities is None or int(capabilities[1], 16) >> _CAP_SYS_RESOURCE & 1
    if not may_raise and _hard_limit(table, "Max locked memory") != UNLIMITED:
        del wanted["memlock"]
    processes = _hard_limit(table, "Max processes")
    if not may_raise and processes != UNLIMITED:
        wanted["nproc"] = processes  # Podman asks for 4,194,304 where a container has other limits without this one
    return MappingProxyType(wanted)


def shm_bytes(memory_bytes: int | None) -> int:
    """Size of a node's /dev/shm: half of the memory it may use, at most 64 GiB.

    Docker's 64 MB end data loaders and collectives with a bus error. Half is what Linux gives a machine's own
    /dev/shm: pages count only when used. The cap makes a leak on a large machine fill /dev/shm, not the machine.
    """
    memory = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // 2, 64 * _GIB)


def _hard_limit(table: str, name: str) -> int:
    row = re.search(rf"^{name}\s+\S+\s+(\S+)", table, re.MULTILINE)
    return UNLIMITED if row is None or row[1] == "unlimited" else int(row[1])


def visible_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int | None:
    """Number of NVIDIA GPUs the kernel's driver shows on this machine; None where it shows nothing at all."""
    try:
        return len(list(driver.iterdir()))
    except OSError:
        return None


def gives_gpus(info: Mapping[str, Any], engine_pid: int | None, proc: Path = Path("/proc")) -> bool | None:
    """Whether an engine can hand GPUs to containers; None if only trying shows that.

    Args:
        info: the engine's description of itself.
        engine_pid: its process.
        proc: where the process file system is mounted.
    """
    if "nvidia" in info.get("Runtimes", {}) or any("nvidia" in str(d) for d in info.get("DiscoveredDevices") or ()):
        return True
    try:
        environ = (proc / str(engine_pid) / "environ").read_bytes()
    except OSError:  # another user's process
        return None
    if engine_pid == 1:  # systemd listens for the engine, whose own environment is not known then
        return None
    variables = dict(entry.partition(b"=")[::2] for entry in environ.split(b"\0"))
    return shutil.which(_HOOK, path=os.fsdecode(variables.get(b"PATH", b""))) is not None


def create(api: Any, spec: ContainerSpec, limits: Mapping[str, int]) -> str:
    """Create a container without starting it; its id."""
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
    """A stream of what a created container will print.

    Attached before the start, because the log of a container that removes itself is gone with it. Without the Upgrade
    headers that the SDK's own attach sends, and read through the HTTP response, nothing is lost (docker-py#3332).
    """
    url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/attach"
    params = {"stream": 1, "stdout": 1, "stderr": 1}
    answer = api.post(url, params=params, stream=True, timeout=None)
    answer.raise_for_status()
    return answer


def _host_config(api: Any, spec: ContainerSpec, limits: Mapping[str, int]) -> Any:
    from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

    # of type "bind", so that a directory the engine does not see is an error and not made empty
    mounts = [Mount(target=target, source=str(source), type="bind") for source, target in spec.mounts]
    if spec.accounts is not None:
        mounts.append(Mount(target=ACCOUNTS, source=str(spec.accounts), type="bind", read_only=True))
    wishes: dict[str, Any] = {}
    if spec.gpus is not None:
        which = {"count": spec.gpus} if isinstance(spec.gpus, int) else {"device_ids": [str(i) for i in spec.gpus]}
        wishes["device_requests"] = [DeviceRequest(**which, capabilities=[["gpu", "compute", "utility"]])]
    if spec.cpus is not None:
        wishes["nano_cpus"] = int(spec.cpus * 1e9)
    if spec.memory_bytes is not None:  # with swap included: a node over its limit ends instead of crawling
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
    """No capability and no way to gain one, but for what was asked for."""
    if spec.privileges == "default":
        rights: dict[str, Any] = {"cap_add": [], "security_opt": []}
    else:
        rights = {"cap_drop": ["ALL"], "cap_add": list(spec.privileges), "security_opt": []}
    if spec.mounts_file_systems:  # what mount(2) takes; AppArmor's own profile forbids any
        rights["cap_add"] = sorted({*rights["cap_add"], "SYS_ADMIN"})
        rights["security_opt"] = ["apparmor=unconfined"]
    elif not spec.privileges:
        rights["security_opt"] = ["no-new-privileges"]
    return rights


class Container:
    """A started container and everything it prints."""

    def __init__(self, engine: str, container_id: str, name: str, stream: Any) -> None:
        self.id, self.name = container_id, name
        self._engine, self._stream = engine, stream

    def output(self) -> Iterator[bytes]:
        """Its output on both streams from the first byte on, ending when the container or the engine ends.

        It has to be read: a container whose reader stands still blocks once the engine's buffer (1 MB) is full.
        """
        with engine_call(f"read the output of container {self.name}", self._engine):
            try:
                while len(header := self._stream.raw.read(_FRAME_HEADER)) == _FRAME_HEADER:
                    yield self._stream.raw.read(int.from_bytes(header[4:], "big"))
            finally:
                self._stream.close()


def this_container() -> str | None:
    """The identifier of the container that this process is in; None outside of Docker's containers."""
    try:
        found = _OF_ENGINE.search(_MOUNTS.read_text())
    except OSError:  # no Linux
        return None
    return found[1] if found else None


def seen_by_engine(path: Path, about: Mapping[str, Any]) -> Path:
    """Where the engine sees a file of this container; the path itself where that is not known.

    Args:
        path: of the file here, absolute.
        about: what the engine says of this container.
    """
    mounts = [(PurePosixPath(each["Destination"]), str(each["Source"])) for each in about.get("Mounts") or ()]
    layer = ((about.get("GraphDriver") or {}).get("Data") or {}).get("MergedDir")
    places = [*mounts, *([(PurePosixPath("/"), str(layer))] if layer else [])]
    holding = [(inside, source) for inside, source in places if path.is_relative_to(inside)]
    if not holding:
        return path
    inside, source = max(holding, key=lambda place: len(place[0].parts))
    return Path(source) / path.relative_to(inside)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended. `code` is None when the engine itself is gone and it is not known."""

    code: int | None
    oom: bool = False


class Watch:
    """Learns of the end of every container that carries the given labels, from its creation on."""

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
                    # Podman filters by names of its own (died, remove)
                    "event": ["die", "died", "oom", "destroy", "remove"],
                },
            )
        self._thread = threading.Thread(target=self._follow, name="skyward-engine-events", daemon=True)
        self._thread.start()

    def ending(self, container_id: str, timeout_s: float) -> Ending | None:
        """How a container ended; None if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            if not self._news.wait_for(lambda: container_id in self._codes or self._over, timeout_s):
                return None
            code = self._codes.get(container_id)
            if code == _SIGKILLED:
                # the two events come in either order; the container's removal ends the doubt
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
