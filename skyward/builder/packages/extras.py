"""The check for extras that a package does not have: uv installs the package without them, and warns at most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from skyward.builder.packages.build_system import fetched
from skyward.errors import ConfigError, ImageError
from skyward.image.plan import origin_of
from skyward.model.image import Image, package_name, requirement_name

_WARNING = re.compile(
    r"The package `(?P<name>[A-Za-z0-9._-]+)(?P<version>[^`]*)` does not have an extra named `(?P<extra>[^`]+)`"
)


def check_extras(
    image: Image, said: str, packages: Sequence[Mapping[str, Any]], place: Path, environment: Mapping[str, str]
) -> None:
    """See that packages have the extras that the image asks for.

    Args:
        image: with all its requirements in `pip`.
        said: what uv said when it resolved them.
        packages: what they came to, of a `pylock.toml`.
        place: a folder for what is fetched, with the site's settings of package tools.
        environment: the variables that point to these.

    Raises:
        ConfigError: a package lacks one; the message names those that it has. What packages ask of each other does not
            count: it is not for the user to mend.
    """
    for found in _WARNING.finditer(" ".join(said.split())):
        name, extra = package_name(found["name"]), package_name(found["extra"])
        asking = [entry for entry in image.pip if requirement_name(entry) == name and extra in _extras(entry)]
        if asking:
            there = _offered(name, packages, place, environment)
            known = "which they are could not be read" if there is None else f"it has: {', '.join(there) or 'none'}"
            raise ConfigError(
                f"{name}{found['version']} has no extra {extra!r}; {known}. Asked for by "
                f"{origin_of(image, 'pip', asking[0])}."
            )


def _extras(entry: str) -> set[str]:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return {package_name(name) for name in Requirement(entry).extras}
    except InvalidRequirement:  # a path, whose extras are checked where its files are read
        return set()


def _offered(
    name: str, packages: Sequence[Mapping[str, Any]], place: Path, environment: Mapping[str, str]
) -> list[str] | None:
    """The extras that a wheel's metadata names; None where it has no wheel, or that cannot be had."""
    entry = next((each for each in packages if package_name(each["name"]) == name), {})
    for file in [*entry.get("wheels", ())[:1], *([entry["archive"]] if "archive" in entry else [])]:
        try:
            text = _metadata(name, file, place, environment)
        except (ImageError, BadZipFile, StopIteration):
            return None
        return sorted(package_name(each) for each in HeaderParser().parsestr(text).get_all("Provides-Extra", []))
    return None


def _metadata(name: str, file: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> str:
    """The metadata of a wheel: by itself where the index has it so (PEP 658), else out of the whole."""
    if "url" in file and not file["url"].startswith("file:"):
        try:
            alone = fetched(name, {"url": f"{file['url']}.metadata"}, place, environment)
            return alone.read_text(encoding="utf-8")
        except ImageError:  # an index need not have it
            pass
    with ZipFile(fetched(name, file, place, environment)) as wheel:
        path = next(path for path in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", path))
        return wheel.read(path).decode("utf-8")
