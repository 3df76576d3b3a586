"""What goes into the record of a `skyward build`, see `skyward.cli.unchanged`: its images and files, and how long it
holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.cache import cache_folder, home
from skyward.builder.contents import file_of_use
from skyward.builder.events import warn
from skyward.builder.packages.metadata import located
from skyward.builder.site.indexes import settings_files
from skyward.cli import unchanged
from skyward.cli.output import Output
from skyward.engine import EngineAddress
from skyward.engine.address import DEFAULT_URL
from skyward.image import Plan, default_base
from skyward.model.image import Dockerfile, local_path

if TYPE_CHECKING:
    from skyward.builder.sources.declared import Declared

# plugins that read nothing of this machine
PLUGINS = ("huggingface", "jax", "joblib", "keras", "sklearn", "tensorflow", "torch")
# files that are looked for beside what an image names, and in all folders above it
_LOOKED_FOR = (".git", ".gitignore", ".dockerignore", "pyproject.toml", "pylock.toml", "uv.lock", "uv.toml")


@dataclass(frozen=True, slots=True)
class Found:
    """An image that a run found, and did not build.

    Attributes:
        declared: how it is declared.
        plan: what it is made of.
        id: its id on the engine; "" where it was looked for in a registry alone.
        is_used: whether the run counts as a use of the image.
        until: when what a registry said of it has to be asked again, in seconds since the epoch.
    """

    declared: Declared
    plan: Plan
    id: str
    is_used: bool = True
    until: float = float("inf")

    @property
    def images(self) -> Iterator[tuple[str, str]]:
        """Images that it rests on by name, each with its id or digest: its base and itself."""
        if not self.plan.base_build:
            named = self.declared.image.base or os.environ.get("SKYWARD_BASE") or default_base(self.plan.python)
            base = self.plan.base if self.plan.image.lock else str(named)
            yield base, json.loads(dict(self.plan.inputs)["base"])
        if self.id:
            yield self.plan.tag, self.id


def record(found: Sequence[Found], output: Output, engine: EngineAddress) -> None:
    """Record a run that found all its images, unless it printed what the next one has to print anew."""
    plugins = {use.name for each in found for use in each.declared.plugins}
    has_warned = warn.cache_info().currsize > 0
    if output.has_events or has_warned or not plugins <= {*PLUGINS} or cache_folder("unchanged") is None:
        return
    # the engine's own socket is looked for before others
    sockets = [path for path in [DEFAULT_URL.removeprefix("unix://")] if path != str(engine.path)]
    settings = settings_files(os.environ, home(), Path.cwd())
    unchanged.record(
        output.printed,
        [pair for each in found for pair in each.images],
        str(engine.path),
        [*map(str, (*settings, *_looked_for(found))), *sockets],
        [str(file_of_use(each.plan.tag)) for each in found if each.is_used],
        min(each.until for each in found),
    )


def _looked_for(found: Iterable[Found]) -> set[Path]:
    """Files that would decide what the images are made of if they were there."""
    looked_for = {Path(each.declared.where).with_suffix(".lock") for each in found}
    for each in found:
        if places := [located(each.declared.root, path) for path in _paths(each)]:
            folders = {folder for place in (each.declared.root, *places) for folder in (place, *place.parents)}
            looked_for |= {folder / name for folder in folders for name in _LOOKED_FOR}
            looked_for |= {place.with_name(f"{place.name}.dockerignore") for place in places}
            looked_for |= {*places, *_members(places)}
    return looked_for


def _paths(found: Found) -> list[str]:
    """The paths of files and folders that an image names."""
    declared, image = found.declared.image, found.plan.image
    paths = [*image.includes, *declared.requirements, *declared.constraints, *(["."] if declared.groups else [])]
    paths += [path for entry in image.pip if (path := local_path(entry)) is not None]
    paths += [declared.project.path] if declared.project else []
    paths += [declared.base.path, declared.base.context] if isinstance(declared.base, Dockerfile) else []
    return paths


def _members(folders: Iterable[Path]) -> Iterator[Path]:
    """The files of workspaces that uv reads to see whether their locks fit, and the folders of members."""
    for lock in {folder / "uv.lock" for place in folders for folder in (place, *place.parents)}:
        if lock.is_file():
            from skyward.builder.packages.project import read_by_uv

            yield from read_by_uv(lock)
