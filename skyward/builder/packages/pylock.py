"""Standard lock files (`pylock.toml`, PEP 751), which uv writes, for the nodes' platform and Python."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from skyward.errors import ConfigError, ImageError
from skyward.image import Package
from skyward.model.image import package_name

if TYPE_CHECKING:
    from packaging import pylock
    from packaging.tags import Tag

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_NEWEST_GLIBC = 40  # uv checks the version that the base has when it installs
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Target:
    """The platform that packages are for.

    Attributes:
        python: minor version of the nodes, such as "3.11".
        platform: OCI platform of the nodes.
    """

    python: str
    platform: str

    @property
    def machine(self) -> str:
        """The processor, in the terms of wheels and markers."""
        name = self.platform.split("/")[1]
        return _MACHINES.get(name, name)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of markers (PEP 508). Any patch release is accepted, as that of the base is unknown."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.99",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.99",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The tags of wheels for it, the preferred ones first."""
        return _tags(self.python, self.machine)


@lru_cache(maxsize=4)
def _tags(python: str, machine: str) -> tuple[Tag, ...]:
    from packaging.tags import compatible_tags, cpython_tags

    major, minor = map(int, python.split("."))
    platforms = []
    for glibc in range(_NEWEST_GLIBC, 4, -1):
        platforms.append(f"manylinux_2_{glibc}_{machine}")
        platforms += [f"{_OLD_NAMES[glibc]}_{machine}"] if glibc in _OLD_NAMES else []
    platforms.append(f"linux_{machine}")
    found = cpython_tags((major, minor), platforms=platforms)
    return (*found, *compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms))


def read_pylock(text: str, where: str) -> pylock.Pylock:
    """Parse a `pylock.toml`; `where` is its path, for messages.

    Raises:
        ConfigError: it is invalid, or has another version of the format.
    """
    from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError

    try:
        return Pylock.from_dict(tomllib.loads(text))
    except (ValueError, PylockValidationError, PylockUnsupportedVersionError) as error:
        raise ConfigError(f"{where} is not a valid lock file (PEP 751): {error}.") from None


def selected(
    lock: pylock.Pylock, where: str, target: Target, extras: Iterable[str] = (), groups: Iterable[str] | None = None
) -> list[pylock.Package]:
    """Return the packages of a lock that apply to a target; `groups` of None are the default ones.

    Raises:
        ConfigError: it is not for that Python or platform, or has no such extra or group.
    """
    from packaging.pylock import PylockSelectError
    from packaging.utils import canonicalize_name

    given = None if groups is None else tuple(groups)
    wanted = tuple(extras)
    of_groups = (*(lock.dependency_groups or ()), *(lock.default_groups or ()))
    for kind, asked, declared in (("extra", wanted, lock.extras), ("group", given, of_groups)):
        if unknown := {*map(canonicalize_name, asked or ())} - {*map(canonicalize_name, declared or ())}:
            raise ConfigError(f"{where} has no {kind} {min(unknown)!r}.")  # packaging says so from 26.4 on
    try:
        found = lock.select(
            environment=target.environment,  # type: ignore[arg-type]
            tags=target.tags,
            extras=wanted,
            dependency_groups=given,
        )
        return [package for package, _ in found]
    except PylockSelectError as error:
        raise ConfigError(f"{where} does not fit {target.platform}, Python {target.python}: {error}.") from None


def packages_of(entries: Iterable[pylock.Package], index_of: Mapping[str, str], target: Target) -> Iterator[Package]:
    """Yield locked packages, without where this machine found them and without build requirements.

    Args:
        entries: packages of a lock.
        index_of: the index of each scoped package.
        target: the nodes' Python and platform.

    Raises:
        ImageError: a file has no SHA-256.
    """
    for entry in entries:
        wheels = [each for each in entry.wheels or () if _fits(each.filename, target)]
        file = entry.archive or entry.sdist
        files: Sequence[pylock.PackageWheel | pylock.PackageArchive | pylock.PackageSdist] = wheels
        if not wheels and file:
            files = [file]
        sizes = [size for each in files if (size := each.size or _size(each.url)) is not None]
        is_source = not wheels and not (entry.archive and str(entry.archive.url or entry.archive.path).endswith(".whl"))
        name = package_name(entry.name)
        yield Package(
            name=name,
            pin=_pin(name, entry),
            hashes=() if entry.vcs else tuple(sorted({_hash(name, each.hashes) for each in files})),
            index=index_of.get(name, "") if entry.version and not entry.archive else "",
            build=() if is_source else None,
            size=max(sizes) if sizes else None,
            compiled=bool(wheels) and not any(each.filename.endswith("-any.whl") for each in wheels),
        )


def _fits(name: str, target: Target) -> bool:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return not parse_wheel_filename(name)[3].isdisjoint(target.tags)
    except InvalidWheelFilename:
        return False


def _size(url: str | None) -> int | None:
    path = file_of(url)
    return path.stat().st_size if path and path.is_file() else None


def file_of(url: str | None) -> Path | None:
    """Return the path in a `file:` URL; None for others."""
    return Path(unquote(urlsplit(url).path)) if url and url.startswith("file:") else None


def local_path_of(entry: pylock.Package, folder: Path) -> Path | None:
    """Return the directory or archive on this machine that a package of a lock in that folder is installed from."""
    if entry.directory:
        return Path(os.path.normpath(folder / entry.directory.path))
    if entry.archive:
        path = file_of(entry.archive.url) or (Path(entry.archive.path) if entry.archive.path else None)
        return Path(os.path.normpath(folder / path)) if path else None
    return None


def _pin(name: str, entry: pylock.Package) -> str:
    if entry.vcs:
        below = f"#subdirectory={entry.vcs.subdirectory}" if entry.vcs.subdirectory else ""
        return f"{name} @ {entry.vcs.type}+{bare(entry.vcs.url or '')}@{entry.vcs.commit_id}{below}"
    if entry.archive:
        return f"{name} @ {bare(entry.archive.url or '')}"
    return f"{name}=={entry.version}"


def bare(url: str) -> str:
    """Return a URL without its login; ssh URLs keep a user without a password."""
    parts = urlsplit(url)
    if parts.password is None and (not parts.username or parts.scheme.endswith("ssh")):
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _hash(name: str, hashes: Mapping[str, str]) -> str:
    if "sha256" not in hashes:
        raise ImageError(f"The index of {name!r} gives no SHA-256 of its files, so they cannot be locked.")
    return f"sha256:{hashes['sha256']}"
