"""The driver of a detached run as a container: its files, its image and its start.

It receives the files of its program and the prepared images of its pools. `on_machines` starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from packaging.requirements import Requirement

from skyward._pool.code.bundle import bundle_modules, bundle_paths
from skyward.builder.events import Report
from skyward.builder.sources.declared import Declared
from skyward.delivery.deliver import ImageTarget, Prepared, deliver, description, write_prepared
from skyward.engine import ContainerSpec, Engine
from skyward.errors import ConfigError, ProviderError
from skyward.image.plan import with_origin
from skyward.model.image import Image
from skyward.model.image_fields import local_minor, platform_of
from skyward.model.source import imports_in
from skyward.model.spec import Cluster, ClusterSpec
from skyward.nodes.process_id import USER
from skyward.plugins.registry import declared_image
from skyward.records.run import MODULE, Rental, RunRecord
from skyward.runs.driver import CACHE_FOLDER, HOME_FOLDER, PROGRAM_FOLDER, STARTED, write_launch

RUN_LABEL = "skyward.run"  # of a driver's container; its value is the name of the run
_PYTHON = "/opt/venv/bin/python"
_EXTRAS = ("ssh",)  # drivers have no system SSH client


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """A program that is to run elsewhere, with everything it needs there.

    Attributes:
        run: a run of it here.
        images: those of its pools, as it declares them.
        files: its files.
        variables: environment variables for it; they may be secrets.
        report: receives progress.
    """

    run: RunRecord
    images: Sequence[Declared]
    files: Pack
    variables: Mapping[str, str] = field(repr=False)
    report: Report

    def record(self, rented: Rental | None = None) -> RunRecord:
        """Return a new record as the driver's host has it, with the current time as the start."""
        container = f"skyward-run-{self.run.id}"
        return replace(self.run, detached=True, place="docker", container=container, rented=rented)

    def deliver(self, to_pools: ImageTarget, to_driver: ImageTarget) -> Delivered:
        """Deliver the images of its pools to where they run, and the driver's image to where the driver runs.

        Raises:
            ConfigError: skyward is not installed here as a package, so the needs of a driver are unknown.
            ImageError: an image is not available.
            EngineError: the engine refuses.
        """
        found: dict[str, Prepared] = {}
        for declared in self.images:
            image, cluster = compiled_for(declared)
            made = deliver(image, cluster, to_pools, self.report)
            found[description(image, cluster.spec)] = Prepared.of(made.tag, made.user, made.reference)
        image, cluster = _driver_image(self.images[0])
        return Delivered(found, deliver(image, cluster, to_driver, self.report).tag)

    def write(self, folder: Path, record: RunRecord, delivered: Delivered) -> None:
        """Write the directory of a run whose driver is to be started: the program, its variables, and its images."""
        write_launch(folder, record, self.files.words, self.variables)
        self.files.write(folder / PROGRAM_FOLDER)
        write_prepared(folder, delivered.images)


class Delivered(NamedTuple):
    """The images of a program's pools, by their descriptions, and the tag of its driver's image."""

    images: Mapping[str, Prepared]
    driver: str


@dataclass(frozen=True, slots=True)
class Pack:
    """The files of a program, by their paths relative to the directory that it will run in, and its start command.

    Attributes:
        programs: the paths that are executable.
    """

    files: dict[str, bytes]
    words: tuple[str, ...]
    programs: frozenset[str] = frozenset()

    def write(self, folder: Path) -> None:
        """Write the files into a directory that only this user can read."""
        folder.mkdir(mode=0o700)
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = 0o700 if name in self.programs else 0o600
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)


def pack(run: RunRecord, images: Sequence[Declared]) -> Pack:
    """Collect the files of a program that is to run elsewhere.

    Its path relative to the working directory is preserved, and so are those of its modules relative to it.

    Args:
        run: a run of it here.
        images: those of its pools.

    Raises:
        ConfigError: a file cannot be read, is outside of the directory that is packed, or is too large.
        SerializationError: its modules cannot be read, or are larger than 20 MB.
    """
    directory, program = Path(run.directory), run.program.removeprefix(MODULE)
    source = directory / program
    files: dict[str, bytes] = {}
    programs: frozenset[str] = frozenset()
    for image in images:
        for path in image.image.includes:
            _check_include(directory, path, image)
        included = bundle_paths(image.image.includes, image.image.excludes)
        files, programs = files | dict(included.files), programs | included.programs
    if run.is_module:
        root, names = PurePosixPath(), [program, f"{program}.__main__"]
        words = run.words
    else:
        script = _inside(directory, source)
        root, names = script.parent, [each.name for each in imports_in(source)]
        files[str(script)] = source.read_bytes()
        words = (str(script), *run.arguments)
    with _searching(directory if run.is_module else source.parent):
        modules = bundle_modules(names)
    files |= {str(root / name): data for name, data in modules.files}
    return Pack(files, words, programs)


def _inside(directory: Path, source: Path) -> PurePosixPath:
    """Return the path of a program below the working directory; its name if it is elsewhere."""
    path = Path(os.path.normpath(source))
    return PurePosixPath(path.relative_to(directory) if path.is_relative_to(directory) else path.name)


def _check_include(directory: Path, path: str, image: Declared) -> None:
    found = Path(os.path.normpath(directory / Path(path).expanduser()))
    if not found.is_relative_to(directory):
        raise ConfigError(
            f"{image.where}: Image(includes=...) names {path}, which is not below {directory}, where the program is "
            "started. A detached run takes the program's directory along; start it from a directory that has both."
        )


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    """Find modules as the program will: in its own directory first."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def compiled_for(declared: Declared) -> tuple[Image, Cluster]:
    """Return the image of a pool, including what its plugins add, and the cluster it is compiled for."""
    platform = declared.image.platform or platform_of(declared.architecture)
    python = local_minor() if declared.image.python == "auto" else declared.image.python
    image = declared_image(declared, platform=platform, python=python)
    return image, Cluster(spec=ClusterSpec(platform=platform, python=python))


def _driver_image(first: Declared) -> tuple[Image, Cluster]:
    """Return the image of the driver: the first pool's, with the packages that skyward's client needs.

    It has the program's packages in the same versions as its functions, and skyward's own code, like any image.
    """
    image, cluster = compiled_for(first)
    plain = replace(image, includes=(), bake=False, lock=None)
    return with_origin(plain, plain.pip_install(*_client_requirements()), "skyward's client"), cluster


def _client_requirements() -> list[str]:
    try:
        lines = requires("skyward") or []
    except PackageNotFoundError:
        raise ConfigError(
            "skyward is not installed here as a package, so what the driver of a detached run needs is not known. "
            "Install it with pip or uv."
        ) from None
    found = []
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if requirement.name == "uv":  # 60 MB, needed only for locks of images
            continue
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *_EXTRAS)):
            requirement.marker = None
            found.append(str(requirement))
    return found


def driver_container(
    record: RunRecord,
    folder: Path,
    image: str,
    socket: Path,
    user: str,
) -> ContainerSpec:
    """Return the specification of a driver's container.

    It sees the machine's processes: directories of pools name the process of their client, by which others determine
    whether that has ended.

    Args:
        record: of the run.
        folder: the run's directory. The user's state directory that contains it is mounted at the same path, because
            kept pools are recorded there; so is `socket`.
        image: of the driver.
        socket: of the engine that its pools use.
        user: numeric ids of the user and group that it runs as.
    """
    return ContainerSpec(
        image=image,
        command=(_PYTHON, "-m", "skyward.runs.driver", str(folder)),
        name=str(record.container),
        labels={RUN_LABEL: record.id, USER: record.user},
        env={
            "DOCKER_HOST": f"unix://{socket}",
            "HOME": str(folder / HOME_FOLDER),
            "LOGNAME": record.user.partition("@")[0],  # the image has no user with this id
            "XDG_CACHE_HOME": str(folder / CACHE_FOLDER),
            "XDG_STATE_HOME": str(folder.parents[2]),
        },
        mounts=tuple((path, str(path)) for path in (folder.parents[1], socket)),
        working_dir=str(folder / "program"),
        user=user,
        privileges="default" if user.startswith("0:") else (),  # root's client changes the owners of nodes' files
        sees_processes=True,
    )


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
    except BaseException:  # Ctrl-C, or a lost engine: the run would go on unknown to the user
        engine.remove(container.id)
        raise
    told = said.decode(errors="replace").strip()
    raise ProviderError(f"The driver of {record.id} ended before the program ran. {told or 'It printed nothing.'}")
