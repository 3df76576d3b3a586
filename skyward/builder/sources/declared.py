"""Images declared in TOML files and projects, and the form in which those of programs are handed over.

Reading a file runs no user code and builds nothing. Plugins are only named there; `skyward.plugins.registry` creates
them. The images of programs have what their plugins add, see `skyward.runs.describe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginUse:
    """A plugin as a file declares it.

    Attributes:
        name: as in `sky.plugins.NAME`.
        kwargs: its parameters.
        where: file and key, for messages.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The content and purpose of an image, as far as they are known before a pool exists.

    Attributes:
        name: the name shown to users: of the file, the function or the variable.
        where: file, and for a program the line or variable, for messages.
        root: directory that the image's relative paths are relative to.
        image: the image description, without the additions of plugins.
        images: of a program's pool: by platform, the image with these additions, or the text of a plugin's error.
        plugins: of a file: the plugins in order.
        accelerator: accelerator of each node, for plugins; None for CPU nodes.
        nodes: number of nodes, for plugins.
        architecture: architecture of the nodes in a pool's notation ("x86_64", "arm64"); None for this machine's.
    """

    name: str
    where: str
    root: Path
    image: Image
    images: Mapping[str, Image | str] = field(default_factory=dict)
    plugins: tuple[PluginUse, ...] = ()
    accelerator: Accelerator | None = None
    nodes: int = 1
    architecture: str | None = None


def load(path: str | Path) -> Declared:
    """Read an image from a TOML file, whose keys are the fields of `Image` plus plugins, accelerator and nodes.

    Raises:
        ConfigError: the file cannot be read, or a value is wrong; the message names the file, the key and what is
            allowed.
    """
    from skyward.builder.sources.toml import read

    path = Path(path)
    values = read(path)
    beside = path.with_suffix(".lock")
    if "lock" not in values and beside.is_file():
        values["lock"] = beside.name
    uses = values.pop("plugins", {}).items()
    nodes, accelerator = values.pop("nodes", 1), values.pop("accelerator", None)
    try:
        image = Image(**values)
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
