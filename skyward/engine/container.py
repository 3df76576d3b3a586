"""One container: its specification, creation, start and output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from skyward.engine.failures import engine_call
from skyward.engine.limits import shm_bytes

ACCOUNTS = "/etc/passwd"
_FRAME_HEADER = 8  # one byte for the stream, three of padding, four for the length


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
