"""Images declared outside of a running program: in TOML files (here) and as the pools of a script (`script.py`).

Reading one runs nothing of the user's and builds nothing. Plugins are only named here; `skyward.plugins.registry`
makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Accelerator, Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredObject:
    """A part of a pool as a file declares it: its class by name and the parameters it is made with.

    Attributes:
        name: as in `sky.NAME`, of a plugin as in `sky.plugins.NAME`.
        args: positional parameters.
        kwargs: parameters by name.
        where: file and key or line, for messages.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


class PluginUse(DeclaredObject):
    """A plugin as an image file or a script declares it."""

    __slots__ = ()


class ProviderUse(DeclaredObject):
    """A provider as a script declares it."""

    __slots__ = ()


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
    from skyward.builder.sources.toml import image_fields, read

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
        image = Image(**image_fields(values))
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
        ConfigError: a name is wrong, or the directory has no pyproject.toml.
    """
    image = Image.from_project(".", groups=groups, extras=extras, package=package)
    root = Path(path).absolute()
    if not (root / "pyproject.toml").is_file():
        raise ConfigError(
            f"{path} is a directory without a pyproject.toml, which a project has. To build what a program declares, "
            "name its file."
        )
    return Declared(name=root.resolve().name, where=str(path), root=root, image=image)
