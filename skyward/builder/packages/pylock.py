"""A reader of standard lock files (`pylock.toml`, PEP 751) for the nodes' platform and Python.

`uv export` writes this format as well, so a project's `uv.lock` is also read here.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from skyward.builder.files.copied import sha256_of
from skyward.builder.folders import home
from skyward.builder.packages.metadata import LocalPackage, entry_for, locked_package
from skyward.builder.site.indexes import folder_of, host_indexes, is_default
from skyward.errors import ConfigError, ImageError
from skyward.image import Package
from skyward.model.image import PipIndex, package_name

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64"}


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
        """The environment of markers (PEP 508), with the first patch release, which uv assumes for a minor version."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The content of a lock file for a target.

    Attributes:
        packages: packages from indexes, URLs and repositories, each with its hashes.
        local: packages from this machine's files.
        indexes: indexes of the packages, unless it is this site's default.
        overrides: requirements that replaced those of packages.
    """

    packages: tuple[Package, ...] = ()
    local: tuple[LocalPackage, ...] = ()
    indexes: tuple[PipIndex, ...] = ()
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A lock file and the way it is read.

    Attributes:
        where: its path, for messages.
        folder: base of its relative paths.
        root: base of the image's relative paths.
        extras: selected optional dependencies.
        groups: selected dependency groups.
        indexes: URLs of the indexes to which packages are bound; None for all that it names.
    """

    where: str
    folder: Path
    root: Path
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    indexes: frozenset[str] | None = field(default=None)


def read_pylock(path: Path) -> dict[str, Any]:
    """Read the document in a `pylock.toml`.

    Raises:
        ConfigError: it cannot be read, or has another version of the format.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    version = str(document.get("lock-version", ""))
    if version.partition(".")[0] != "1" or not isinstance(document.get("packages", []), list):
        raise ConfigError(f"{path} is not a lock file of version 1.0 (PEP 751); its lock-version is {version!r}.")
    return document


def default_groups(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the groups installed by default; PDM puts a project's own dependencies into one."""
    return tuple(document.get("default-groups", ()))


def locked_for(document: Mapping[str, Any], source: Source, target: Target) -> Locked:
    """Return the packages of a document for a target.

    Raises:
        ConfigError: it is not for that Python, a package has no file for the target, or a file is missing.
    """
    check_requires_python(str(document.get("requires-python", "")), source.where, target)
    _check_environments(document, source, target)
    entries, local, scoped = [], [], dict[str, set[str]]()
    for entry in _applying(document, source, target):
        name = package_name(entry["name"])
        file, sha256 = _local_file(entry, source, target)
        if file is not None:
            _check_hash(name, file, sha256, source)
            local.append(locked_package(entry_for(file, source.root), name, file))
            continue
        entries.append(_for_target(entry, source, target))
        index = str(entry.get("index", "")).rstrip("/")
        if index and _is_named(index, source):
            scoped.setdefault(index, set()).add(name)
    indexes = tuple(PipIndex(url, tuple(names)) for url, names in sorted(scoped.items()))
    index_of = {name: index.url for index in indexes for name in index.packages}
    return Locked(packages=tuple(packages_of(entries, index_of)), local=tuple(local), indexes=indexes)


def check_requires_python(wanted: str, where: str, target: Target) -> None:
    """Check that a lock or project supports the Python of an image.

    Raises:
        ConfigError: it is for other versions.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        # any patch release is accepted, as the base's is unknown here
        fits = any(SpecifierSet(wanted).contains(f"{target.python}.{patch}") for patch in range(40))
    except InvalidSpecifier:
        raise ConfigError(f"{where}: requires-python must be a version specifier; found {wanted!r}.") from None
    if not fits:
        raise ConfigError(
            f"{where} is for Python {wanted} (requires-python), and the image has Python {target.python}, as its "
            "client has. Run the client on a version that both allow, or widen requires-python."
        )


def _environment(source: Source, target: Target) -> dict[str, str | AbstractSet[str]]:
    return {**target.environment, "extras": set(source.extras), "dependency_groups": set(source.groups)}


def _check_environments(document: Mapping[str, Any], source: Source, target: Target) -> None:
    """Check that a lock includes the target, as it may lack packages for others."""
    from packaging.markers import InvalidMarker, Marker

    markers = document.get("environments", [])
    try:
        fits = any(Marker(each).evaluate(_environment(source, target), context="lock_file") for each in markers)
    except InvalidMarker as error:
        raise ConfigError(f"{source.where}: its environments cannot be read: {error}.") from None
    if markers and not fits:
        raise ConfigError(
            f"{source.where} is for other environments than {target.platform} with Python {target.python}: "
            f"{', '.join(markers)}. Lock the project for this one as well."
        )


def _applying(document: Mapping[str, Any], source: Source, target: Target) -> Iterator[dict[str, Any]]:
    """Yield the packages that apply to the target; each may occur only once."""
    from packaging.markers import InvalidMarker, Marker

    environment = _environment(source, target)
    seen: dict[str, Any] = {}
    for entry in document.get("packages", []):
        try:
            applies = "marker" not in entry or Marker(entry["marker"]).evaluate(environment, context="lock_file")
        except InvalidMarker as error:
            raise ConfigError(f"{source.where}: the marker of {entry['name']} cannot be read: {error}.") from None
        wanted = entry.get("requires-python", "")
        if wanted:
            check_requires_python(wanted, f"{source.where}: {entry['name']}", target)
        if not applies:
            continue
        if entry["name"] in seen:
            raise ConfigError(f"{source.where} has {entry['name']} twice for {target.platform}.")
        seen[entry["name"]] = entry
        yield entry


def _local_file(entry: Mapping[str, Any], source: Source, target: Target) -> tuple[Path | None, str]:
    """Return the local directory or file that a package is installed from, and its SHA-256; None for others.

    A file in a folder that is a package source of this machine is not included: it comes from there by its hash.
    """
    if "directory" in entry:
        return Path(os.path.normpath(source.folder / entry["directory"]["path"])), ""
    files = [entry["archive"]] if "archive" in entry else []
    index = str(entry.get("index", ""))
    if not (index.startswith("file:") and _is_own_folder(index)):
        files += [file for file in entry.get("wheels", ()) if _fits(file_name(file), target)]
    for file in files:
        if path := _path(file):
            return Path(os.path.normpath(source.folder / path)), str(file.get("hashes", {}).get("sha256", ""))
    return None, ""


def _check_hash(name: str, file: Path, sha256: str, source: Source) -> None:
    if sha256 and file.is_file() and sha256_of(file) != sha256:
        raise ConfigError(
            f"{source.where} has another {name}: the SHA-256 of {file} is not {sha256}. Lock the project anew if the "
            "file was to change."
        )


def _path(file: Mapping[str, Any]) -> Path | None:
    if "path" in file:
        return Path(file["path"])
    url = urlsplit(str(file.get("url", "")))
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _is_own_folder(source: str) -> bool:
    ours = host_indexes(os.environ, home())
    listed = [*ours.find_links, *ours.extra, *([ours.default] if ours.default else [])]
    return folder_of(source) in {folder_of(each) for each in listed} - {None}


def _is_named(index: str, source: Source) -> bool:
    """Return whether packages must come only from that index."""
    if is_default(index) or not index.startswith(("http://", "https://")):
        return False
    if source.indexes is not None:
        return index in source.indexes
    ours = host_indexes(os.environ, home())
    return index not in {each.rstrip("/") for each in (*ours.extra, ours.default or "")}


def _for_target(entry: dict[str, Any], source: Source, target: Target) -> dict[str, Any]:
    """Reduce an entry to the files that fit the target."""
    if "wheels" not in entry:
        return entry
    wheels = [file for file in entry["wheels"] if _fits(file_name(file), target)]
    if not wheels and "sdist" not in entry:
        raise ConfigError(
            f"{source.where} has no file of {entry['name']} {entry.get('version', '')} for {target.platform} and "
            f"Python {target.python}: {', '.join(map(file_name, entry['wheels']))}."
        )
    if not wheels:
        return {key: value for key, value in entry.items() if key != "wheels"}
    return {**entry, "wheels": wheels}


def _fits(name: str, target: Target) -> bool:
    """Return whether a wheel's name allows it on the target. uv checks the glibc version."""
    found = re.fullmatch(r".+-([^-]+)-([^-]+)-([^-]+)\.whl", name)
    if not found:
        return False
    pythons, abis, platforms = (part.split(".") for part in found.groups())
    major, _, minor = target.python.partition(".")
    stable = range(2, int(minor) + 1)
    right_python = any(
        tag in (f"py{major}", f"py{major}{minor}", f"cp{major}", f"cp{major}{minor}")
        or ("abi3" in abis and tag in {f"cp{major}{each}" for each in stable})
        or ("none" in abis and tag in {f"{kind}{major}{each}" for kind in ("py", "cp") for each in stable})
        for tag in pythons
    )
    right_abi = any(tag in ("none", "abi3", f"cp{major}{minor}") for tag in abis)
    right_platform = any(
        tag == "any" or ("linux" in tag and "musl" not in tag and tag.endswith(target.machine)) for tag in platforms
    )
    return right_python and right_abi and right_platform


def packages_of(entries: Iterable[Mapping[str, Any]], index_of: Mapping[str, str]) -> Iterator[Package]:
    """Yield the packages of a `pylock.toml`, without where this machine found them and without build requirements.

    Args:
        entries: its packages, with only the files for the target.
        index_of: the index of each scoped package.

    Raises:
        ImageError: a file has no SHA-256.
    """
    for entry in entries:
        name = package_name(entry["name"])
        files = entry.get("wheels") or [entry[key] for key in ("archive", "sdist") if key in entry]
        sizes = [file["size"] for file in files if "size" in file]
        yield Package(
            name=name,
            pin=_pin(name, entry),
            hashes=() if "vcs" in entry else tuple(sorted(_hash(name, file) for file in files)),
            index=index_of.get(name, "") if "version" in entry and "archive" not in entry else "",
            build=() if is_source(entry) else None,
            size=max(sizes) if sizes else None,
            compiled="wheels" in entry and not any(file_name(file).endswith("-any.whl") for file in files),
        )


def is_source(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has no suitable wheel and must be built."""
    archive = entry.get("archive")
    return not entry.get("wheels") and not (archive and file_name(archive).endswith(".whl"))


def file_name(file: Mapping[str, Any]) -> str:
    """Return the file name in an entry, or the last part of its URL or path."""
    return str(file.get("name") or unquote(urlsplit(file.get("url") or file.get("path", "")).path).rpartition("/")[2])


def _pin(name: str, entry: Mapping[str, Any]) -> str:
    if "vcs" in entry:
        vcs = entry["vcs"]
        below = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
        return f"{name} @ {vcs['type']}+{bare(vcs['url'])}@{vcs['commit-id']}{below}"
    if "archive" in entry:
        return f"{name} @ {bare(entry['archive']['url'])}"
    return f"{name}=={entry['version']}"


def bare(url: str) -> str:
    """Return a URL without its login; ssh URLs keep a user without a password."""
    parts = urlsplit(url)
    if parts.password is None and (not parts.username or parts.scheme.endswith("ssh")):
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _hash(name: str, file: Mapping[str, Any]) -> str:
    found = file.get("hashes", {}).get("sha256")
    if not found:
        raise ImageError(f"The index of {name!r} gives no SHA-256 of its files, so that they cannot be locked.")
    return f"sha256:{found}"
