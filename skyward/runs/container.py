"""The driver of a detached run as a container: the files of its program, its image and its start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from skyward._pool.code.bundle import bundle_modules, bundle_paths
from skyward.builder.events import Report
from skyward.builder.sources.declared import Declared
from skyward.delivery.deliver import Delivered, ImageTarget, deliver, description
from skyward.engine import ContainerSpec, Engine
from skyward.errors import ConfigError, ProviderError
from skyward.image.plan import with_origin
from skyward.model.image import Image
from skyward.model.image_fields import local_minor, platform_of
from skyward.model.source import imports_in
from skyward.model.spec import OWN_FOLDERS, Cluster, ClusterSpec
from skyward.nodes.process_id import USER
from skyward.plugins.registry import declared_image
from skyward.records.run import MODULE, RunRecord
from skyward.runs.driver import CACHE_FOLDER, STARTED
from skyward.runs.shared_folder import shared_folder

RUN_LABEL = "skyward.run"  # of a driver's container; its value is the name of the run
_PYTHON = "/opt/venv/bin/python"
_EXTRAS = ("ssh",)  # drivers have no system SSH client


def pack(run: RunRecord, pool: Declared, target: Path) -> Sequence[str]:
    """Copy the files of a program that is to run elsewhere to a new directory; return the arguments of `python` there.

    Its path relative to the working directory is preserved, and so are those of its modules relative to it.

    Args:
        run: a run of it here.
        pool: its first one.
        target: only this user can read it.

    Raises:
        ConfigError: a file cannot be read, is outside of the directory that is packed, or is too large; or the
            directory is one of the system's.
        SerializationError: its modules cannot be read, or are larger than 20 MB.
    """
    directory, program = Path(run.directory), run.program.removeprefix(MODULE)
    if run.directory in OWN_FOLDERS and run.directory != "/tmp":
        raise ConfigError(
            f"This run is started in {directory}, which it would find at the same path in its container, where the "
            "system's own files are. Start it in another directory."
        )
    for each in pool.image.includes:
        if not Path(os.path.normpath(directory / Path(each).expanduser())).is_relative_to(directory):
            raise ConfigError(
                f"{pool.where}: Image(includes=...) names {each}, which is not below {directory}, where the program is "
                "started. A detached run takes the program's directory along; start it from a directory that has both."
            )
    included = bundle_paths(pool.image.includes, pool.image.excludes)
    files, words = dict(included.files), run.words
    root, searched = PurePosixPath(), directory
    names = [program, f"{program}.__main__"]
    if not run.is_module:
        script = Path(os.path.normpath(directory / program))
        inside = script.relative_to(directory) if script.is_relative_to(directory) else Path(script.name)
        root, searched = PurePosixPath(inside.parent), script.parent
        names = [each.name for each in imports_in(script)]
        files[str(inside)] = script.read_bytes()
        words = (str(inside), *run.arguments)
    with _searching(searched):
        modules = bundle_modules(names)
    files |= {str(root / name): data for name, data in modules.files}
    programs = included.programs | {str(root / name) for name in modules.programs}
    target.mkdir(mode=0o700)
    for name, data in files.items():
        path = target / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o700 if name in programs else 0o600
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    return words


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    """Find modules as the program will: in its own directory first."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def deliver_images(
    pool: Declared, to_pools: ImageTarget, to_driver: ImageTarget, report: Report
) -> tuple[Mapping[str, Delivered], str]:
    """Deliver the image of a program's first pool to its nodes' machines, and the driver's image to its machine.

    Returns:
        the pool's image by its description, for the driver; and the tag of the driver's image.

    Raises:
        ConfigError: skyward is not installed here as a package, so the needs of a driver are unknown.
        ImageError: an image is not available.
        EngineError: the engine refuses.
    """
    image, cluster = compiled_for(pool)
    made = deliver(image, cluster, to_pools, report)
    prepared = {description(image, cluster.spec): made}
    # the program's packages in the same versions as its functions have them, and those of skyward's client
    plain = replace(image, includes=(), bake=False, lock=None)
    driver = with_origin(plain, plain.pip_install(*_client_requirements()), "skyward's client")
    return prepared, deliver(driver, cluster, to_driver, report).tag


def compiled_for(declared: Declared) -> tuple[Image, Cluster]:
    """Return the image of a pool, including what its plugins add, and the cluster it is compiled for."""
    platform = declared.image.platform or platform_of(declared.architecture)
    python = local_minor() if declared.image.python == "auto" else declared.image.python
    image = declared_image(declared, platform=platform, python=python)
    return image, Cluster(spec=ClusterSpec(platform=platform, python=python))


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


def driver_container(record: RunRecord, folder: Path, image: str, socket: Path, user: str) -> ContainerSpec:
    """Return the specification of a driver's container.

    It sees the machine's processes: directories of pools name the process of their client, by which others determine
    whether that has ended.

    Args:
        record: of the run.
        folder: the run's directory. The user's state directory that contains it is mounted at the same path, because
            kept pools are recorded there; so is `socket`. The program's directory is at the path that it has here.
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
            "HOME": str(folder.parents[1] / "home"),
            "LOGNAME": record.user.partition("@")[0],  # the image has no user with this id
            "XDG_CACHE_HOME": str(folder / CACHE_FOLDER),
            "XDG_STATE_HOME": str(folder.parents[2]),
        },
        mounts=(
            (shared_folder(record, folder), record.directory),
            *((path, str(path)) for path in (folder.parents[1], socket)),
        ),
        working_dir=record.directory,
        user=user,
        privileges="default" if user.startswith("0:") else (),  # root's client changes the owners of nodes' files
        sees_processes=True,
    )


def start_driver(engine: Engine, spec: ContainerSpec) -> None:
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
    told = said.decode(errors="replace").strip() or "It printed nothing."
    raise ProviderError(f"The driver {spec.name} ended before the program ran. {told}")
