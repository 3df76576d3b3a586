"""From requirements to exact packages: `uv pip compile` on this machine for the nodes' platform and Python.

What it finds is kept on disk by what was asked, and holds until an upgrade is asked for: the same description stays the
same image. A description that was extended or cut keeps the versions of the one before. Where this machine's settings
send uv (mirrors, folders, credentials) is in neither the lock nor the file that keeps it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skyward.build.indexes import host_indexes, mirrors
from skyward.build.rules import Rules, open_entries, with_given_hashes
from skyward.errors import ConfigError, ImageError
from skyward.image import Lock, Package
from skyward.image.lock import scopes
from skyward.model.image import Image, local_path, package_name

_FORMAT = 2
# glibc 2.28 is what the wheels of the large frameworks ask for; Debian has it since 10, Ubuntu since 20.04
_PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_28",
    "linux/arm64": "aarch64-manylinux_2_28",
    "linux/arm64/v8": "aarch64-manylinux_2_28",
    "linux/riscv64": "riscv64-unknown-linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be locked.

    Attributes:
        image: the description, with all its requirements in `pip`.
        python: minor version of the nodes.
        platform: OCI platform of the nodes.
        provided: packages that local files provide; they are in no lock.
        rules: what else files of the user's say.
    """

    image: Image
    python: str
    platform: str
    provided: tuple[str, ...] = ()
    rules: Rules = field(default_factory=Rules)

    @property
    def entries(self) -> tuple[str, ...]:
        """The requirements that indexes and URLs answer for."""
        return tuple(entry for entry in self.image.pip if local_path(entry) is None)

    @property
    def settings(self) -> dict[str, Any]:
        """What else decides the answer, beside the requirements and uv itself."""
        return {
            "python": self.python,
            "platform": self.platform,
            "exclude_newer": self.image.exclude_newer,
            "indexes": [[index.url, list(index.packages)] for index in self.image.pip_indexes],
            **self.rules.settings,
        }


def lock_requirements(request: Request, *, upgrade: bool = False) -> Lock:
    """The lock of a request: from the file that keeps it, else by resolving.

    Args:
        request: what is to be locked.
        upgrade: resolve anew, and take the newest versions that are allowed.

    Raises:
        ConfigError: requirements contradict each other, or no lock can be made for the platform.
        ImageError: a package or an index cannot be had, or uv is missing.
    """
    if not open_entries(request.entries, request.rules):
        return Lock(request.rules.pinned)
    file = _folder() / f"{_key(request)}.json"
    kept = _read(file)
    if kept is not None and not upgrade:
        return replace(kept.lock, sources=request.rules.sources)
    from skyward.build.resolving import resolve  # where nothing is to resolve, none of it is loaded

    if request.platform not in _PLATFORMS:
        raise ConfigError(
            f"Image: pip cannot be locked for {request.platform!r}; platforms with packages are: "
            f"{', '.join(sorted(_PLATFORMS))}."
        )
    preferred = () if upgrade else _preferred(request)
    found = resolve(request, _PLATFORMS[request.platform], tuple((p.name, _version(p)) for p in preferred))
    # an index may tell a size at one time only, and a package that changes its layer is installed again
    known = {package.line: package for package in preferred}
    answer = packages_in(found, scopes(request.image), request.provided)
    pinned = {package.name: package for package in request.rules.pinned}
    more = (known.get(package.line, package) for package in answer if package.name not in pinned)
    lock = with_given_hashes(Lock((*pinned.values(), *more)), request.rules)
    _write(file, request, lock)
    return replace(lock, sources=request.rules.sources)


@lru_cache(maxsize=1)
def uv_version() -> str:
    """The version of the uv that resolves here; "" for one that is not installed as a package."""
    spec = find_spec("uv")
    if spec is None or spec.origin is None:
        return ""
    # importlib.metadata takes 10 ms to load, of the 150 that a no-op may take; the folder's name says it as well
    about = next(Path(spec.origin).parent.parent.glob("uv-*.dist-info"), None)
    return about.stem.removeprefix("uv-") if about else ""


@dataclass(frozen=True, slots=True)
class _Kept:
    entries: frozenset[str]
    settings: dict[str, Any]
    lock: Lock


def _folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("skyward", ensure_exists=True) / "locks"


def _key(request: Request) -> str:
    """What the answer depends on. This machine's package sources go in as a hash, as they may hold passwords."""
    sources = [host_indexes(os.environ, Path.home()), sorted(mirrors(os.environ, Path.cwd()).items())]
    asked = [_FORMAT, uv_version(), request.entries, request.provided, request.settings, repr(sources)]
    return hashlib.sha256(json.dumps(asked, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def _preferred(request: Request) -> tuple[Package, ...]:
    """The packages of the last lock for the same target whose requirements are more or fewer than these."""
    wanted = frozenset(request.entries)
    files = _folder().glob("*.json") if _folder().is_dir() else ()
    for file in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        kept = _read(file)
        if kept and kept.settings == request.settings and (kept.entries <= wanted or wanted <= kept.entries):
            return kept.lock.packages
    return ()


def _read(file: Path) -> _Kept | None:
    """A lock from its file; None if there is none, or one that this version cannot read."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        packages = tuple(Package(**{**entry, "hashes": tuple(entry["hashes"])}) for entry in kept["packages"])
        return _Kept(frozenset(kept["entries"]), kept["settings"], Lock(packages))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # half written by a machine that went down; it is made again
        return None


def _write(file: Path, request: Request, lock: Lock) -> None:
    packages = [
        {name: getattr(package, name) for name in ("name", "pin", "hashes", "index", "size", "compiled")}
        for package in lock.packages
    ]
    text = json.dumps({"entries": request.entries, "settings": request.settings, "packages": packages}, indent=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(dir=file.parent, prefix=".") as place:
        fresh = Path(place) / file.name
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)


def packages_in(
    document: Mapping[str, Any], index_of: Mapping[str, str], provided: Collection[str] = ()
) -> Iterator[Package]:
    """The packages of a `pylock.toml` (PEP 751), without what tells where this machine found them.

    Args:
        document: the parsed file, with those packages and files only that are for the target.
        index_of: the index that each scoped package comes from.
        provided: packages to leave out.

    Raises:
        ImageError: a file has no SHA-256.
    """
    for entry in document["packages"]:
        name = package_name(entry["name"])
        if name in provided:
            continue
        files = entry.get("wheels") or [entry[key] for key in ("archive", "sdist") if key in entry]
        sizes = [file["size"] for file in files if "size" in file]
        yield Package(
            name=name,
            pin=_pin(name, entry),
            hashes=() if "vcs" in entry else tuple(sorted(_hash(name, file) for file in files)),
            index=index_of.get(name, "") if "version" in entry and "archive" not in entry else "",
            size=max(sizes) if sizes else None,
            compiled="wheels" in entry and not any(_file_name(file).endswith("-any.whl") for file in files),
        )


def _file_name(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or urlsplit(file.get("url") or file.get("path", "")).path)


def _pin(name: str, entry: Mapping[str, Any]) -> str:
    if "vcs" in entry:
        vcs = entry["vcs"]
        below = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
        return f"{name} @ {vcs['type']}+{_bare(vcs['url'])}@{vcs['commit-id']}{below}"
    if "archive" in entry:
        return f"{name} @ {_bare(entry['archive']['url'])}"
    return f"{name}=={entry['version']}"


def _bare(url: str) -> str:
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


def _version(package: Package) -> str:
    return package.pin.partition("==")[2]
