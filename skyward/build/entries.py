"""The entries of a `pylock.toml` (PEP 751), as packages of a lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from skyward.errors import ImageError
from skyward.image import Package
from skyward.model.image import package_name


def packages_of(entries: Iterable[Mapping[str, Any]], index_of: Mapping[str, str]) -> Iterator[Package]:
    """The packages of a `pylock.toml`, without what tells where this machine found them, nor what builds take.

    Args:
        entries: its packages, with those files only that are for the target.
        index_of: the index that each scoped package comes from.

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
    """Whether an entry has no wheel that fits, and so has to be built."""
    archive = entry.get("archive")
    return not entry.get("wheels") and not (archive and file_name(archive).endswith(".whl"))


def file_name(file: Mapping[str, Any]) -> str:
    """The name of a file of an entry, or what its URL or path ends with."""
    return str(file.get("name") or urlsplit(file.get("url") or file.get("path", "")).path)


def _pin(name: str, entry: Mapping[str, Any]) -> str:
    if "vcs" in entry:
        vcs = entry["vcs"]
        below = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
        return f"{name} @ {vcs['type']}+{bare(vcs['url'])}@{vcs['commit-id']}{below}"
    if "archive" in entry:
        return f"{name} @ {bare(entry['archive']['url'])}"
    return f"{name}=={entry['version']}"


def bare(url: str) -> str:
    """A URL without password; one of ssh keeps its user."""
    parts = urlsplit(url)
    if parts.password is None and (not parts.username or parts.scheme.endswith("ssh")):
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _hash(name: str, file: Mapping[str, Any]) -> str:
    found = file.get("hashes", {}).get("sha256")
    if not found:
        raise ImageError(f"The index of {name!r} gives no SHA-256 of its files, so that they cannot be locked.")
    return f"sha256:{found}"
