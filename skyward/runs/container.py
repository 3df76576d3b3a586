"""The driver of a detached run as a container; of this machine's engine, beside the containers of its pools."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from skyward.builder.events import Report
from skyward.builder.sources.script import pools_in_script
from skyward.delivery.deliver import ImageTarget
from skyward.delivery.prepared import Prepared, write_prepared
from skyward.engine import ContainerSpec, Engine, EngineAddress
from skyward.errors import ProviderError
from skyward.nodes.process_id import USER
from skyward.nodes.run_directory import runtime_base, temporary_base
from skyward.records.run import RunRecord
from skyward.runs.driver import CACHE_FOLDER, HOME_FOLDER, PROGRAM_FOLDER, STARTED, Launch, write_launch
from skyward.runs.pack import Pack, deliver_driver, deliver_images, pack
from skyward.runs.place import RUN_LABEL

_PYTHON = "/opt/venv/bin/python"


def container_name(run_id: str) -> str:
    """The name of the driver's container."""
    return f"skyward-run-{run_id}"


def driver_container(
    record: RunRecord,
    folder: Path,
    image: str,
    socket: Path,
    shared: Iterable[Path],
    variables: Mapping[str, str],
    user: str,
) -> ContainerSpec:
    """The container of a driver.

    It sees the machine's processes: directories of pools name the process of their client, and others tell by it
    whether that has ended.

    Args:
        record: of the run.
        folder: the run's directory. The user's directory for state, which has it, is mounted at its own path, for pools
            that are kept are recorded there; so are `socket` and `shared`.
        image: of the driver.
        socket: of the engine that its pools use.
        shared: directories that it shares with the machine.
        variables: its environment, which anybody can read who may use the engine.
        user: number of the user and of the group that it runs as.
    """
    return ContainerSpec(
        image=image,
        command=(_PYTHON, "-m", "skyward.runs.driver", str(folder)),
        name=container_name(record.id),
        labels={RUN_LABEL: record.id, USER: record.user},
        env={
            "DOCKER_HOST": f"unix://{socket}",
            "HOME": str(folder / HOME_FOLDER),
            "LOGNAME": record.user.partition("@")[0],  # the image knows no user of this number
            "XDG_CACHE_HOME": str(folder / CACHE_FOLDER),
            "XDG_STATE_HOME": str(folder.parents[2]),
            **variables,
        },
        mounts=tuple((path, str(path)) for path in dict.fromkeys((*shared, folder.parents[1], socket))),
        working_dir=str(folder / "program"),
        user=user,
        privileges="default" if user.startswith("0:") else (),  # root's client gives files of nodes to their users
        sees_processes=True,
        quiet=True,
    )


def write_run(
    folder: Path, record: RunRecord, files: Pack, variables: Mapping[str, str], images: Mapping[str, Prepared]
) -> None:
    """Write the directory of a run whose driver is to be started: the program, its variables, and its images."""
    record.write(folder)
    files.write(folder / PROGRAM_FOLDER)
    write_launch(folder, files.words, variables)
    write_prepared(folder, images)


def start_driver(engine: Engine, spec: ContainerSpec, record: RunRecord) -> None:
    """Start a driver, and return once it confirms that the program runs.

    Raises:
        EngineError: the engine refuses.
        ProviderError: the driver ended before.
    """
    container = engine.run(spec)
    said = b""
    try:
        for part in container.output():
            said += part
            if f"{STARTED}\n".encode() in said:
                return
    except BaseException:  # Ctrl-C, or the engine is gone: nobody would know of it
        engine.remove(container.id)
        raise
    told = said.decode(errors="replace").strip()
    raise ProviderError(f"The driver of {record.id} ended before the program ran. {told or 'It has said nothing.'}")


def own_user(socket: Path) -> str:
    """The number of this user; their group is that of the engine's socket, where only that opens it to them."""
    user, about = os.geteuid(), socket.stat()
    group = os.getegid() if user in (0, about.st_uid) else about.st_gid
    return f"{user}:{group}"


def as_container(
    launch: Launch,
    source: Path,
    address: EngineAddress,
    variables: Mapping[str, str],
    report: Report,
    *,
    registry: str | None = None,
) -> RunRecord:
    """Build the images of a program's pools and of its driver, and start the driver.

    Args:
        launch: the program.
        source: its file.
        address: of the engine that runs the driver, as its pools name it.
        variables: environment variables that it gets.
        report: receives progress.
        registry: repository through which the images of its pools go; None where that engine runs them.

    Raises:
        ConfigError: its images, or what it needs, cannot be known before it runs.
        ImageError: an image cannot be had.
        EngineError: the engine refuses.
        ProviderError: the driver ended before the program ran.
    """
    images = pools_in_script(source)
    files = pack(launch, source, images)
    engine = Engine.connect(address.url)
    delivered = deliver_images(images, ImageTarget(engine=address, registry=registry), report)
    image = deliver_driver(images, ImageTarget(engine=address), report)
    record = replace(launch.record(detached=True), place="docker", container=container_name(launch.id))
    folder = launch.folder
    try:
        write_run(folder, record, files, variables, delivered)
        shared = {runtime_base(), temporary_base()}
        own = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR") if os.environ.get(name)}
        spec = driver_container(record, folder, image, address.path, shared, own, own_user(address.path))
        start_driver(engine, spec, record)
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    return record
