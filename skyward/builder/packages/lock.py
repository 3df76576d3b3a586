"""The lock of an image's requirements, made by `uv pip compile` for the nodes' platform and Python.

A lock is cached by its request and kept until an upgrade, so the same description stays the same image. A description
that was extended or reduced keeps the versions of the previous one. Neither the lock nor the cache contains this
machine's package settings (mirrors, folders, credentials).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.folders import cache_path, home, newest, read, write
from skyward.builder.packages.local import LocalPackage
from skyward.builder.site.indexes import host_indexes, mirrors
from skyward.errors import ConfigError, ImageError, SkywardError
from skyward.image import Lock, Package, with_origin
from skyward.image.lock import Sources
from skyward.model.image import Image, local_path, requirement_name

if TYPE_CHECKING:
    from skyward.builder.packages.requirement_files import Line

_FORMAT = 5
_PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_",
    "linux/arm64": "aarch64-manylinux_2_",
    "linux/arm64/v8": "aarch64-manylinux_2_",
    "linux/riscv64": "riscv64-unknown-linux",
}
_GLIBCS = (17, 28, *range(31, 41))  # the 2.x for which uv resolves (its option --python-platform)
# for unknown bases: what the wheels of the large frameworks require; Debian has it since 10
_USUAL_GLIBC = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules for a lock beside its requirements.

    Attributes:
        pinned: packages chosen by a lock of the user's; they are taken unchanged.
        constraints: versions that packages must have if they are installed.
        overrides: requirements that replace those of packages.
        hashed: lines of files that limit the files from which a requirement may be installed.
        all_hashed: where hashes are required for every package; "" if they are not.
        sources: additional package sources.
    """

    pinned: tuple[Package, ...] = ()
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    hashed: tuple[Line, ...] = ()
    all_hashed: str = ""
    sources: Sources = field(default_factory=Sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A set of requirements to lock.

    Attributes:
        image: the description, with all its requirements in `pip`.
        python: minor version of the nodes.
        platform: OCI platform of the nodes.
        packages: packages provided by local files.
        rules: rules from the user's files.
        libc: the C library of the nodes, such as "glibc 2.36"; "" if unknown.
    """

    image: Image
    python: str
    platform: str
    packages: tuple[LocalPackage, ...] = ()
    rules: Rules = field(default_factory=Rules)
    libc: str = ""

    @property
    def entries(self) -> tuple[str, ...]:
        """The requirements that are resolved from indexes and URLs."""
        return tuple(entry for entry in self.image.pip if local_path(entry) is None)

    @property
    def open(self) -> tuple[str, ...]:
        """The requirements that uv resolves: all but pinned packages, or all where constraints may exclude these."""
        pins = set() if self.rules.constraints else {package.pin for package in self.rules.pinned}
        return tuple(entry for entry in self.entries if entry not in pins)

    def asked(self, folder: Path | None = None) -> tuple[str, ...]:
        """What determines the lock besides uv, one line each; paths of package sources are relative to the folder."""
        rules, image = self.rules, self.image
        pins = "\n".join(package.line for package in rules.pinned)
        sources = (rules.sources.default, *rules.sources.extra, *rules.sources.find_links)
        lines = {
            "base": [str(image.base or "")],
            "requirement": self.entries,
            "local": [f"{each.name} {each.needs}".strip() for each in self.packages],
            "build": [f"{each.name}: {', '.join(each.build)}" for each in self.packages if each.build],
            "exclude-newer": [image.exclude_newer or ""],
            "index": [f"{index.url} {' '.join(index.packages)}" for index in image.pip_indexes],
            "pinned": [pins and hashlib.sha256(pins.encode()).hexdigest()],
            "constraint": rules.constraints,
            "override": rules.overrides,
            "hashes": [f"{each.text} {' '.join(each.hashes)}" for each in rules.hashed],
            "require-hashes": [str(bool(rules.all_hashed) or "")],
            "source": [os.path.relpath(each, folder) if folder and each.startswith("/") else each for each in sources],
        }
        return tuple(sorted(f"{name} {each}" for name, values in lines.items() for each in values if each))


def lock_requirements(request: Request, *, upgrade: bool = False) -> Lock:
    """Return the lock of a request, from its cache file or by resolving.

    Args:
        request: the requirements to lock.
        upgrade: resolve again, and take the newest versions allowed.

    Raises:
        ConfigError: no lock can be made for the platform, or given hashes do not match.
        ImageError: requirements contradict each other; a package or an index is unavailable.
    """
    pinned, is_settled = request.rules.pinned, not request.open and not any(each.needs for each in request.packages)
    if is_settled and not any(each.build for each in request.packages) and not any(each.is_source for each in pinned):
        return Lock(pinned, target=target_of(request) if pinned else "")
    file = cache_path("locks") / f"{_key(request)}.json"
    kept = _read(file)
    if kept is not None and not upgrade:
        return replace(kept[2], sources=request.rules.sources)
    lock = lock_anew(request, () if upgrade else _preferred(request))
    _write(file, request, lock)
    return replace(lock, sources=request.rules.sources)


def target_of(request: Request) -> str:
    """Return the platform of a request in uv's terms: with the newest glibc that uv knows and the nodes have.

    Raises:
        ConfigError: there are no packages for it.
    """
    if request.platform not in _PLATFORMS:
        raise ConfigError(
            f"Image: pip cannot be locked for {request.platform!r}; platforms with packages are: "
            f"{', '.join(sorted(_PLATFORMS))}."
        )
    target = _PLATFORMS[request.platform]
    if not target.endswith("_"):
        return target
    if reason := why_too_old(request.libc):
        raise ConfigError(f"The base has {request.libc}, and {reason}. Use a newer base.")
    return f"{target}{max(each for each in _GLIBCS if each <= _minor_of(request.libc))}"


def why_too_old(libc: str) -> str:
    """Return the reason why no packages can be installed for a C library; "" if they can."""
    return f"packages are made for glibc 2.{_GLIBCS[0]} and newer" if _minor_of(libc) < _GLIBCS[0] else ""


def _minor_of(libc: str) -> int:
    return int(libc.rpartition(".")[2]) if libc.startswith("glibc 2.") else _USUAL_GLIBC


def lock_anew(request: Request, preferred: tuple[Package, ...]) -> Lock:
    """Resolve a request: combine pinned packages with the others, and lock the build requirements of both.

    Args:
        request: the requirements to lock.
        preferred: packages whose versions are kept if they still fit.

    Raises:
        The same errors as `lock_requirements`.
    """
    from skyward.builder.packages.resolver import Resolved, resolve  # not loaded if nothing is resolved

    target, found = target_of(request), Resolved()
    if request.open or any(each.needs for each in request.packages):
        found = resolve(request, target, preferred)
    # an index may report sizes only at times, and a package that changes its layer is installed again
    known = {package.line: package for package in preferred}
    pinned = {package.name: package for package in request.rules.pinned}
    more = (known.get(package.line, package) for package in found.packages if package.name not in pinned)
    lock = with_given_hashes(Lock((*pinned.values(), *more)), request.rules)
    local = {each.name: each.build for each in request.packages if each.build}
    systems = {**found.builds, **local}
    if to_build := tuple(package.pin for package in pinned.values() if package.is_source):
        systems |= resolve(_reduced(request, to_build), target, (), only_sources=True).builds
    builds = {name: build_packages(request, target, name, wanted) for name, wanted in systems.items()}
    packages = tuple(replace(each, build=builds[each.name]) if each.is_source else each for each in lock.packages)
    return Lock(packages, projects=tuple((name, builds[name]) for name in local), target=target)


def _reduced(request: Request, pip: tuple[str, ...], origin: str = "") -> Request:
    """Return a request of other requirements, from the same indexes and for the same platform."""
    nothing = replace(request.image, pip=())
    image = with_origin(nothing, replace(nothing, pip=pip), origin) if origin else replace(nothing, pip=pip)
    return replace(request, image=image, rules=Rules(sources=request.rules.sources), packages=())


def build_packages(request: Request, target: str, name: str, wanted: tuple[str, ...]) -> tuple[Package, ...]:
    """Lock the requirements of a build like those of the image: from the same indexes, for the same platform.

    They may include source packages, whose own build requirements are then included too, as all are installed together.

    Raises:
        ImageError: a requirement is unavailable, or contradicts the others.
    """
    from skyward.builder.packages.resolver import resolve

    while wanted:
        try:
            found = resolve(_reduced(request, wanted, f"the build of {name!r}"), target, ())
        except SkywardError as error:
            listed = ", ".join(wanted)
            raise ImageError(f"Build requirements of {name!r} are unavailable: {listed}. {error}") from error
        more = [each for inner in found.builds.values() for each in inner]
        if set(more) <= set(wanted):
            return tuple(sorted(found.packages, key=lambda package: package.name))
        wanted = tuple(dict.fromkeys((*wanted, *more)))
    return ()


def _key(request: Request) -> str:
    """Return the key of a request. This machine's package sources are hashed, as they may contain passwords."""
    sources = [host_indexes(os.environ, home()), sorted(mirrors(os.environ).items())]
    lines = [line for line in request.asked() if not line.startswith("base ")]
    asked = [_FORMAT, version("uv"), request.python, request.platform, lines, repr(sources)]
    asked.append(_PLATFORMS.get(request.platform) and target_of(request))
    return hashlib.sha256(json.dumps(asked, separators=(",", ":")).encode()).hexdigest()


def _preferred(request: Request) -> tuple[Package, ...]:
    """Return the packages of the last lock for the same target whose requirements include, or are part of, these."""
    wanted = _choosing(request.asked())
    for file in newest(cache_path("locks"), "*.json"):
        asked, target, lock = _read(file) or ((), [], Lock())
        entries = _choosing(asked)
        is_edited = (entries <= wanted or wanted <= entries) and all(
            line.startswith("requirement ") for line in entries ^ wanted
        )
        if is_edited and target == [request.python, request.platform]:
            return lock.packages
    return ()


def _choosing(asked: Iterable[str]) -> set[str]:
    """Return the inputs of a lock that determine versions."""
    return {line for line in asked if not line.startswith(("base ", "local ", "build "))}


def _read(file: Path) -> tuple[list[str], list[str], Lock] | None:
    """Read inputs, target and lock from a file; None if there is none that this version can read."""
    try:
        kept = json.loads(read(file) or "")
        return kept["asked"], kept["for"], unpacked(kept["lock"])
    except (ValueError, KeyError, TypeError, AttributeError):  # half written, or from another version: made again
        return None


def _write(file: Path, request: Request, lock: Lock) -> None:
    target = [request.python, request.platform]
    write(file, json.dumps({"for": target, "asked": request.asked(), "lock": packed(lock)}, indent=1))


def packed(lock: Lock) -> dict[str, Any]:
    """Return a lock as tables, without its sources and without fields that are unknown."""
    table = asdict(
        lock, dict_factory=lambda pairs: {name: each for name, each in pairs if each not in (None, "", False)}
    )
    del table["sources"]
    return table


def unpacked(table: Mapping[str, Any]) -> Lock:
    """Return the lock in such tables."""
    return Lock(**{name: _parsed(value) for name, value in table.items()})


def _parsed(value: Any) -> Any:
    if isinstance(value, dict):
        return Package(**{name: _parsed(part) for name, part in value.items()})
    return tuple(map(_parsed, value)) if isinstance(value, list) else value


def with_given_hashes(lock: Lock, rules: Rules) -> Lock:
    """Limit the packages of a lock to the files whose hashes were given.

    Raises:
        ConfigError: none of a package's files is among those given, or required hashes are missing.
    """
    if not rules.hashed and not rules.all_hashed:
        return lock
    return Lock(tuple(_with_given(package, rules) for package in lock.packages))


def _with_given(package: Package, rules: Rules) -> Package:
    from packaging.requirements import Requirement

    version = package.pin.partition("==")[2]
    given = {
        each_hash
        for line in rules.hashed
        if requirement_name(line.text) == package.name
        and (not version or Requirement(line.text).specifier.contains(version, prereleases=True))
        for each_hash in line.hashes
    }
    if not given and rules.all_hashed and package.hashes:
        raise ConfigError(
            f"{rules.all_hashed} requires hashes of all packages (--require-hashes), and {package.pin} has none. "
            "Compile the file again, with hashes."
        )
    kept = tuple(each for each in package.hashes if each in given) if given else package.hashes
    if given and not kept:
        raise ConfigError(f"None of the hashes for {package.pin} matches a file on the index. Either was changed.")
    return replace(package, hashes=kept)
