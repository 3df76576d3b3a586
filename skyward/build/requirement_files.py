"""From files to requirements: requirement files, dependency groups and local packages, read for an image.

Every line must be a plain requirement: where packages come from is said in the image, where it is scoped.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyward.build.local import dependencies_of, local_packages, located
from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.image import Image, local_path, package_name, requirement_name

_OPTION = re.compile(r"(--?[A-Za-z][A-Za-z-]*)(?:[=\s]\s*(.*))?", re.DOTALL)
_SHORT = {"-r": "--requirement", "-e": "--editable", "-c": "--constraint", "-i": "--index-url", "-f": "--find-links"}
_REMEDIES = {
    "--constraint": "Put the versions beside the names; skyward locks what they leave open.",
    "--index-url": "Say it in the image: pip_indexes, for the packages that come from there.",
    "--extra-index-url": "Say it in the image: pip_indexes, for the packages that come from there.",
    "--find-links": "A folder of wheels belongs to the machine's settings: map an index to it in SKYWARD_INDEXES.",
    "--hash": "Skyward locks with hashes of its own; name the file that this one was compiled from.",
}


def resolve_files(image: Image, root: Path) -> Image:
    """The image with everything that files ask for among its own requirements, their origins noted.

    `requirements` and `groups` are empty afterwards, and what local packages need stands beside them in `pip`. What a
    local package provides is not asked of an index.

    Args:
        image: the description.
        root: what its relative paths are relative to.

    Raises:
        ConfigError: a file is missing or holds something else; the message names file and line.
    """
    found = [*_from_files(image, root), *_from_groups(image, root)]
    packages = local_packages(image.pip_install(*(entry for entry, _ in found)), root)
    found += [
        (fields.requirement(need), f"your pip=[{each.entry!r}]") for each in packages for need in each.dependencies
    ]
    provided = {package.name for package in packages}
    pip = {*image.pip, *(entry for entry, _ in found)}
    kept = (entry for entry in pip if local_path(entry) is not None or requirement_name(entry) not in provided)
    origins = {f"pip:{entry}": origin for entry, origin in found if entry not in image.pip} | dict(image.origins)
    return replace(image, pip=tuple(kept), requirements=(), groups=(), origins=tuple(sorted(origins.items())))


def requirement_lines(image: Image, root: Path) -> tuple[str, ...]:
    """Everything an image asks of package indexes, as requirements in normal form, sorted; see `resolve_files`."""
    return tuple(entry for entry in resolve_files(image, root).pip if local_path(entry) is None)


def _from_files(image: Image, root: Path) -> Iterator[tuple[str, str]]:
    for name in image.requirements:
        path = located(root, name)
        if path.name == "pyproject.toml":
            table = _project(path)
            entries = _checked(dependencies_of(table.get("project", {}), ()), f"{path}, [project] dependencies")
            _refuse_sources(table, entries, image, path)
            yield from ((entry, f"{name}, [project] dependencies") for entry in entries)
        else:
            yield from _lines(path, name, ())


def _lines(path: Path, name: str, above: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Each requirement of a file, and where it stands."""
    if path in above:
        raise ConfigError(f"{path} requires itself, by way of {above[-1]}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Image: requirements names {name!r}, but {path} cannot be read: {error}.") from None
    for number, line in _logical(text):
        where = f"{name}, line {number}"
        if not line.startswith("-"):
            yield from ((entry, where) for entry in _checked((line,), f"{path}, line {number}"))
            continue
        option, value = _option(line)
        if option == "--requirement" and value:
            yield from _lines(located(path.parent, value), value, (*above, path))
        elif option == "--editable" and value:
            yield from ((entry, where) for entry in _checked((_as_path(value),), f"{path}, line {number}"))
        else:
            raise ConfigError(
                f"{path}, line {number}: {option} cannot be used here. "
                + _REMEDIES.get(option, "A requirement file of an image holds requirements and -r only.")
            )


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, without comments, and the number each begins at."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        first = first if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        parts.append(re.sub(r"(^|\s)#.*$", "", line))
        if whole := " ".join("".join(parts).split()):
            yield first, whole
        parts = []


def _option(line: str) -> tuple[str, str]:
    joined = re.match(r"(-[a-z])(?=[^-\s])(.*)", line)
    found = _OPTION.match(line)
    option, value = (joined[1], joined[2]) if joined else (found[1], found[2] or "") if found else (line, "")
    return _SHORT.get(option, option), value.strip().strip("\"'")


def _as_path(text: str) -> str:
    return text if local_path(text) is not None else f"./{text}"


def _checked(entries: tuple[str, ...], where: str) -> list[str]:
    checked = []
    for entry in entries:
        if "--hash" in entry:
            raise ConfigError(f"{where}: --hash cannot be used here. {_REMEDIES['--hash']}")
        try:
            checked.append(fields.requirement(entry))
        except ConfigError as error:
            raise ConfigError(f"{where}: {str(error).removeprefix('Image: ')}") from None
    return checked


def _from_groups(image: Image, root: Path) -> Iterator[tuple[str, str]]:
    if not image.groups:
        return
    path = _nearest(root, image)
    document = _project(path)
    groups = {package_name(name): listed for name, listed in document.get("dependency-groups", {}).items()}
    optional = {package_name(name) for name in document.get("project", {}).get("optional-dependencies", {})}
    for name in image.groups:
        if name in groups:
            texts, where = _expanded(name, groups, path, ()), f"{path}, [dependency-groups] {name}"
        elif name in optional:
            texts = [*_extra(document["project"], name)]
            where = f"{path}, [project.optional-dependencies] {name}"
        else:
            raise ConfigError(
                f"Image: groups names {name!r}, which {path} does not have; it has: "
                f"{', '.join(sorted({*groups, *optional})) or 'none'}."
            )
        entries = _checked(tuple(texts), where)
        _refuse_sources(document, entries, image, path)
        yield from ((entry, f"your groups=[{name!r}]") for entry in entries)


def _extra(project: dict[str, Any], name: str) -> tuple[str, ...]:
    return dependencies_of({**project, "dependencies": ()}, (name,))


def _expanded(name: str, groups: dict[str, Any], path: Path, above: tuple[str, ...]) -> list[str]:
    """A dependency group with those that it includes (PEP 735)."""
    if name in above:
        raise ConfigError(f"{path}: the dependency group {name!r} includes itself, by way of {above[-1]!r}.")
    texts: list[str] = []
    for entry in groups[name]:
        inner = package_name(entry["include-group"]) if isinstance(entry, dict) and "include-group" in entry else None
        if inner in groups:
            texts += _expanded(inner, groups, path, (*above, name))
        elif isinstance(entry, str):
            texts.append(entry)
        else:
            raise ConfigError(f"{path}: the dependency group {name!r} holds {entry!r}, which names no group there.")
    return texts


def _nearest(root: Path, image: Image) -> Path:
    for folder in (root, *root.parents):
        if (folder / "pyproject.toml").is_file():
            return folder / "pyproject.toml"
    raise ConfigError(f"Image: groups={list(image.groups)!r}, but there is no pyproject.toml in {root} or above.")


def _project(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def _refuse_sources(document: dict[str, Any], entries: list[str], image: Image, path: Path) -> None:
    """Refuse what uv would take from somewhere else for this project, unless the image says where from."""
    sources = document.get("tool", {}).get("uv", {}).get("sources", {})
    elsewhere = {package_name(name) for name in sources} & {requirement_name(entry) for entry in entries}
    said = {name for index in image.pip_indexes for name in index.packages}
    said |= {requirement_name(entry) for entry in image.pip}
    if missing := sorted(elsewhere - said):
        raise ConfigError(
            f"{path} takes {', '.join(missing)} from a source of its own ([tool.uv.sources]), which an image does not "
            "follow. Say in the image where it comes from: pip_indexes for an index, pip for a path or a version."
        )
