"""Rules in the user's files beyond requirements: versions, hashes and further indexes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from skyward.errors import ConfigError
from skyward.image import Lock, Package
from skyward.image.lock import Sources
from skyward.model.image import package_name, requirement_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """A requirement with the files that it may be installed from: `sha256:...` each, and where it is said."""

    requirement: str
    hashes: tuple[str, ...]
    where: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a lock has to heed beside the requirements.

    Attributes:
        pinned: packages that a lock of the user's has decided on; they are taken as they are.
        constraints: versions that packages must have if they are installed.
        overrides: requirements that take the place of what packages ask for.
        hashed: files that requirements may be installed from.
        all_hashed: where it is said that each package must have its hashes given; "" if it is not.
        sources: further places to take packages from.
    """

    pinned: tuple[Package, ...] = ()
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    hashed: tuple[Hashed, ...] = ()
    all_hashed: str = ""
    sources: Sources = field(default_factory=Sources)

    @property
    def settings(self) -> dict[str, Any]:
        """What of it decides a lock, as far as there is any."""
        given = {
            "pinned": [package.line for package in self.pinned],
            "constraints": list(self.constraints),
            "overrides": list(self.overrides),
            "hashed": [[each.requirement, list(each.hashes)] for each in self.hashed],
            "all hashed": bool(self.all_hashed),
            "sources": [each for each in (self.sources.default, *self.sources.extra, *self.sources.find_links) if each],
        }
        return {name: value for name, value in given.items() if value}


def open_entries(entries: Iterable[str], rules: Rules) -> list[str]:
    """The requirements that pinned packages do not answer.

    Raises:
        ConfigError: a package is pinned to a version that a requirement or a constraint excludes.
    """
    pins = {package.name: package for package in rules.pinned}
    for entry in rules.constraints:
        if package := pins.get(requirement_name(entry)):
            _answers(package, entry)
    found = []
    for entry in entries:
        package = pins.get(requirement_name(entry))
        if package is None or (entry != package.pin and not _answers(package, entry)):
            found.append(entry)
    return found


def _answers(package: Package, entry: str) -> bool:
    from packaging.requirements import Requirement

    wanted = Requirement(entry)
    name, equals, version = package.pin.partition("==")
    if not equals or wanted.url:
        return not wanted.specifier and not wanted.url and not wanted.extras
    if not wanted.specifier.contains(version, prereleases=True) and (not wanted.marker or wanted.marker.evaluate()):
        raise ConfigError(
            f"The lock of your project has {name} {version}, and the image asks for {entry!r} as well. Change one of "
            "them, and lock the project anew."
        )
    return not wanted.extras


def with_given_hashes(lock: Lock, rules: Rules) -> Lock:
    """A lock whose packages have no other files than those that were given for them.

    Raises:
        ConfigError: none of a package's files is among those given, or it had to be given some.
    """
    if not rules.hashed and not rules.all_hashed:
        return lock
    return Lock(tuple(_with_given(package, rules) for package in lock.packages))


def _with_given(package: Package, rules: Rules) -> Package:
    from packaging.requirements import Requirement

    given: dict[str, str] = {}
    version = package.pin.partition("==")[2]
    for each in rules.hashed:
        if package_name(requirement_name(each.requirement)) != package.name:
            continue
        specifier = Requirement(each.requirement).specifier
        if not version or specifier.contains(version, prereleases=True):
            given |= dict.fromkeys(each.hashes, each.where)
    if not given:
        if rules.all_hashed and package.hashes:
            raise ConfigError(
                f"{rules.all_hashed} wants the hashes of all packages (--require-hashes), and none are given for "
                f"{package.pin}. Compile the file anew, with hashes."
            )
        return package
    kept = tuple(hash_ for hash_ in package.hashes if hash_ in given)
    if not kept:
        raise ConfigError(
            f"The hashes that {next(iter(given.values()))} gives for {package.pin} are of no file that its index has "
            "for these nodes: the file was changed, or the package was. Do not install it before you know which; then "
            "compile the file anew, with hashes."
        )
    return replace(package, hashes=kept)
