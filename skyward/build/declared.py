"""Images declared outside of a running program: TOML files (here) and the pools of a script (`skyward.build.script`).

Reading one runs nothing of the user's and builds nothing. Plugins are only named here; `skyward.plugins.declared`
makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from skyward.build.local import LocalPackage, local_packages
from skyward.build.requirement_files import requirement_lines, resolve_files
from skyward.errors import ConfigError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Dockerfile, Image, PipIndex, Project
from skyward.model.spec import Nodes

__all__ = ["Declared", "LocalPackage", "PluginUse", "load", "local_packages", "requirement_lines", "resolve_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginUse:
    """A plugin as it is declared: its name and the parameters it is made with.

    Attributes:
        name: as in `sky.plugins.NAME`.
        args: positional parameters.
        kwargs: parameters by name.
        where: file and key or line, for messages.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What an image is made of and for, as far as it is known before any pool exists.

    Attributes:
        name: what people call it: the file's name, the decorated function, the variable.
        where: file, and line in a script, for messages.
        root: directory that the image's relative paths are relative to.
        image: the description, without what plugins add.
        plugins: plugins by name, in their order.
        accelerator: of each node, as plugins may read it; None for CPU nodes.
        nodes: number of nodes, as plugins may read it.
        architecture: of the nodes as a pool takes it ("x86_64", "arm64"); None for this machine's.
        has_volumes: whether the pool mounts volumes, which puts a program for that into the image.
    """

    name: str
    where: str
    root: Path
    image: Image
    plugins: tuple[PluginUse, ...] = ()
    accelerator: Accelerator | None = None
    nodes: int = 1
    architecture: str | None = None
    has_volumes: bool = False


def load(path: str | Path) -> Declared:
    """Read an image from a TOML file, whose keys are the fields of `Image`, and plugins, accelerator and nodes.

    Raises:
        ConfigError: the file cannot be read, or a value is wrong; the message names file, key and what is allowed.
    """
    from skyward.build.document import read

    path = Path(path)
    values = read(path)
    beside = path.with_suffix(".lock")
    if "lock" not in values and beside.is_file():
        values["lock"] = beside.name
    plugins = values.pop("plugins", {})
    uses = plugins.items() if isinstance(plugins, dict) else ((name, {}) for name in plugins)
    try:
        nodes = Nodes.of(values.pop("nodes", 1)).desired
        accelerator = Accelerator.of(values.pop("accelerator", None))
        image = Image(**_fields(values))
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('Image: ')}") from None
    return Declared(
        name=path.stem,
        where=str(path),
        root=path.parent.absolute(),
        image=image,
        plugins=tuple(PluginUse(name=name, kwargs=given, where=f"{path}, plugins.{name}") for name, given in uses),
        accelerator=accelerator,
        nodes=nodes,
    )


def load_project(
    path: str | Path, *, groups: Sequence[str] = (), extras: Sequence[str] = (), package: str | None = None
) -> Declared:
    """The image of a project in a directory; see `Image.from_project`.

    Raises:
        ConfigError: a name is wrong.
    """
    image = Image.from_project(".", groups=groups, extras=extras, package=package)
    root = Path(path).absolute()
    return Declared(name=root.resolve().name, where=str(path), root=root, image=image)


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """The document's values as `Image` takes them."""
    if isinstance(values.get("base"), dict):
        base = values["base"]
        values["base"] = Dockerfile(base["dockerfile"], base.get("context", "."), base.get("target"))
    if "project" in values:
        project = values["project"]
        values["project"] = Project(**project) if isinstance(project, dict) else Project(project)
    if "pip_indexes" in values:
        values["pip_indexes"] = [PipIndex(**index) for index in values["pip_indexes"]]
    if isinstance(values.get("exclude_newer"), date):  # a time is a date, too
        values["exclude_newer"] = values["exclude_newer"].isoformat()
    return values
