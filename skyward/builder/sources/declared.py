"""Images declared outside a running program: in TOML files (here) and by the pools of a script (`script.py`).

Reading a declaration runs no user code and builds nothing. Plugins are only named here; `skyward.plugins.registry`
creates them.
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
    """A part of a pool as a file declares it: the name of its class and its parameters.

    Attributes:
        name: as in `sky.NAME`; for a plugin, as in `sky.plugins.NAME`.
        args: positional parameters.
        kwargs: keyword parameters.
        where: file and key or line, for messages.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


class PluginUse(DeclaredObject):
    """A plugin declared by an image file or a script."""

    __slots__ = ()


class ProviderUse(DeclaredObject):
    """A provider declared by a script."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The content and purpose of an image, as far as they are known before a pool exists.

    Attributes:
        name: the name shown to users: of the file, the decorated function or the variable.
        where: file, and for a script the line, for messages.
        root: directory that the image's relative paths are relative to.
        image: the image description, without the additions of plugins.
        plugins: the plugins in order.
        accelerator: accelerator of each node, for plugins; None for CPU nodes.
        nodes: number of nodes, for plugins.
        architecture: architecture of the nodes in a pool's notation ("x86_64", "arm64"); None for this machine's.
        has_volumes: whether the pool mounts volumes, which adds a program for that to the image.
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
    """Read an image from a TOML file, whose keys are the fields of `Image` plus plugins, accelerator and nodes.

    Raises:
        ConfigError: the file cannot be read, or a value is wrong; the message names the file, the key and what is
            allowed.
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
    """Return the image of the project in a directory; see `Image.from_project`.

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
