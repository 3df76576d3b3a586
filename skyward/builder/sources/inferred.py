"""A proposal for an image's packages, and how it differs from an image: values, and how people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skyward.model.image import Image, local_path, requirement_name

State = Literal["add", "change", "keep", "unused"]
_SIGNS: dict[State, str] = {"add": "+", "change": "~", "keep": "=", "unused": "-"}
_SHOWN = 3  # places of an import


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredPackage:
    """A package that code imports.

    Attributes:
        name: in normal form.
        version: installed here.
        requirement: as `Image(pip=...)` takes it: name and version or, for what came from a repository or a path, that.
        where: places of the imports, such as "train.py:3".
        optional: whether the code goes on without it, wherever it imports it.
        plugin: the plugin that sets it up on nodes, such as "torch"; None for none.
        note: how it came here, where that is not by its version from an index; else "".
    """

    name: str
    version: str
    requirement: str
    where: tuple[str, ...]
    optional: bool = False
    plugin: str | None = None
    note: str = ""

    @property
    def about(self) -> str:
        """Words on it for people."""
        places = ", ".join(self.where[:_SHOWN]) + (", ..." if len(self.where) > _SHOWN else "")
        words = [f"imported in {places}" + (" (optional)" if self.optional else "")]
        words += [f"sky.plugins.{self.plugin}() installs it and sets it up"] if self.plugin else []
        return "; ".join([*words, *([self.note] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Inferred:
    """What code imports, as this interpreter has it. Nothing is in any image by this: write down what shall be.

    Attributes:
        code: what was read.
        packages: those that it imports, by name; not what these need in turn.
        missing: modules that are not here: name, where it is imported, and whether the code goes on without.
        notes: sentences on what else was found, such as projects in editable mode.
    """

    code: str
    packages: tuple[InferredPackage, ...]
    missing: tuple[tuple[str, str, bool], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pip(self) -> tuple[str, ...]:
        """The packages as requirements, for `Image(pip=...)`."""
        return tuple(package.requirement for package in self.packages)

    @property
    def plugins(self) -> tuple[str, ...]:
        """Names of the plugins that set up what is imported, for `sky.plugins`."""
        return tuple(sorted({package.plugin for package in self.packages if package.plugin}))

    def diff(self, image: Image, root: Path | None = None) -> Difference:
        """How an image differs from what is imported.

        Args:
            image: with all that it is to be compared with; files of requirements are read.
            root: what its relative paths start from; None for the working directory.

        Raises:
            ConfigError: a file that the image names cannot be read.
        """
        return Difference(self, tuple(_compared(self.packages, _wanted(image, root or Path.cwd()))))

    def __str__(self) -> str:
        return str(self.diff(Image()))


@dataclass(frozen=True, slots=True)
class Line:
    """One package in a difference.

    Attributes:
        state: "add": the image lacks it; "change": the image asks for another version; "keep": the image has it;
            "unused": nothing imports it, though another package may need it.
        requirement: what is proposed; what the image has, where that is to stay.
        about: words on it for people.
        package: what was found; None where nothing imports it.
    """

    state: State
    requirement: str
    about: str
    package: InferredPackage | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """How an image differs from what code imports; printed, a line for each package."""

    inferred: Inferred
    lines: tuple[Line, ...]

    def __bool__(self) -> bool:
        """Whether the image lacks something, or asks for another version of it."""
        return any(line.state in ("add", "change") for line in self.lines)

    @property
    def pip(self) -> tuple[str, ...]:
        """Requirements to write into the image: those that it lacks, and those that are to replace one."""
        return tuple(line.requirement for line in self.lines if line.state in ("add", "change"))

    def __str__(self) -> str:
        width = max((len(line.requirement) for line in self.lines), default=0)
        found = [f"{_SIGNS[line.state]} {line.requirement:<{width}}  {line.about}" for line in self.lines]
        for name, where, optional in self.inferred.missing:
            found.append(f"? {name:<{width}}  imported in {where}{' (optional)' * optional}, is not installed here")
        found += [f"# {note}" for note in self.inferred.notes]
        return "\n".join(found) or f"{self.inferred.code} imports nothing but the standard library and skyward."


def _wanted(image: Image, root: Path) -> dict[str, list[str]]:
    """An image's requirements by package."""
    from skyward.builder.packages.requirements import resolve_files

    wanted: dict[str, list[str]] = {}
    for entry in resolve_files(image, root).image.pip:
        wanted.setdefault(requirement_name(entry) or entry, []).append(entry)
    return wanted


def _compared(packages: Iterable[InferredPackage], wanted: dict[str, list[str]]) -> Iterator[Line]:
    left = dict(wanted)
    for package in packages:
        there = left.pop(package.name, None) or left.pop(package.requirement, None)
        if there is None:
            yield Line("add", package.requirement, package.about, package)
        elif all(_allows(entry, package.version) for entry in there):
            yield Line("keep", ", ".join(there), package.about, package)
        else:
            yield Line("change", package.requirement, f"the image has {', '.join(there)}; {package.about}", package)
    for name, entries in left.items():
        if local_path(name) is None:
            about = "in the image; nothing imports it, though other packages may need it"
            yield Line("unused", ", ".join(entries), about)


def _allows(requirement: str, version: str) -> bool:
    from packaging.requirements import Requirement

    if local_path(requirement) is not None:
        return True
    parsed = Requirement(requirement)
    return parsed.url is not None or parsed.specifier.contains(version, prereleases=True)
