"""One run of `uv pip compile` with this machine's package settings, and the errors of its failures.

A missing extra is one of these errors: uv itself installs the package without it, and at most warns.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from skyward.builder.folders import scratch_folder, uv_variables
from skyward.builder.packages.lock import Request, find_uv
from skyward.builder.packages.metadata import (
    BuildSystem,
    build_system,
    fetched,
    offered_extras,
    parsed_metadata,
    source_texts,
    wheel_metadata,
)
from skyward.builder.packages.pylock import is_source
from skyward.builder.site.index_server import FolderServer
from skyward.builder.site.settings import UvSettings, read_site, uv_settings, with_sources
from skyward.errors import ConfigError, ImageError, SkywardError
from skyward.image import Package
from skyward.image.lock import PROJECT, requirements_file, unlisted
from skyward.image.plan import origin_of
from skyward.model.image import Image, package_name, requirement_name
from skyward.model.image_fields import without_logins

if TYPE_CHECKING:
    from email.message import Message

_log = logging.getLogger(__name__)
_LOCK, _CONSTRAINTS, _OVERRIDES = "pylock.toml", "constraints.txt", "overrides.txt"
_KEPT = ("UV_CACHE_DIR", "UV_HTTP_RETRIES", "UV_KEYRING_PROVIDER", "UV_OFFLINE")
_STOOD_IN = re.compile(r"\s+@\s+file://\S+/[^/\s-]+-([^/\s-]+)-py3-none-any\.whl")
_SERVED = re.compile(r"http://127\.0\.0\.1:\d+/[0-9a-f]{32}")
_MISSING = (
    re.compile(r"Because (?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])? was not found in"),
    re.compile(r"there (?:is|are) no versions? of (?P<name>[A-Za-z0-9._-]+)"),
    re.compile(r"only (?:the following versions of )?(?P<name>[A-Za-z0-9._-]+)\S* (?:is|are) available"),
    re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:[=<>!~]\S+)? has no (?:wheels|usable wheels)"),
)
_UNFIT = re.compile(r"([A-Za-z0-9._-]+)(?:[=<>!~]=?\S+)? (?:has|have) no wheels with a matching platform tag")
_UNREACHABLE = re.compile(r"Failed to fetch|Request failed|error sending request|dns error|timed out", re.IGNORECASE)
_REFUSED = re.compile(r"HTTP status (?:client|server) error \((\d+)")
_CERTIFICATE = re.compile(r"UnknownIssuer|invalid peer certificate|certificate verify failed", re.IGNORECASE)
_WARNING = re.compile(
    r"The package `(?P<name>[A-Za-z0-9._-]+)(?P<version>[^`]*)` does not have an extra named `(?P<extra>[^`]+)`"
)
_BUILD = re.compile(r"Failed to build `([A-Za-z0-9._-]+)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of resolving a request.

    Attributes:
        packages: entries of the `pylock.toml` (PEP 751) written by uv.
        builds: build systems of those without a suitable wheel, by name.
    """

    packages: tuple[dict[str, Any], ...] = ()
    builds: dict[str, BuildSystem] = field(default_factory=dict)


def resolve(
    request: Request, target: str, preferred: Iterable[tuple[str, str]], *, only_sources: bool = False
) -> Resolved:
    """Resolve a request with uv, and read the build systems of its source packages.

    Args:
        request: the requirements to lock.
        target: the platform in uv's terms.
        preferred: names and versions to keep if they still fit.
        only_sources: take the named packages without their dependencies, and as source packages.

    Raises:
        ConfigError: the requirements contradict each other, or this machine's settings are wrong.
        ImageError: a package or an index is unavailable, or uv is missing.
    """
    words = _words(request, target)
    if only_sources:
        words += ["--no-deps", *(f"--no-binary={requirement_name(entry)}" for entry in request.entries)]
    with scratch_folder("lock") as place, FolderServer() as server:
        site = with_sources(read_site(), request.rules.sources)
        _warn_of_strategy(site.indexes.strategy)
        environment = _prepare(place, request, uv_settings(site, request.image, server.url))
        stood_in = {package.name for package in _stood_in_for(request)}
        extras: list[str] = []
        while True:
            (place / _LOCK).write_text(_pins(preferred), encoding="utf-8")
            asked = [*words, *(word for name in extras for word in ("--extra", name))]
            done = subprocess.run(
                asked, cwd=place, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
            if done.returncode:
                raise _failure(request, done.stderr)
            found = tomllib.loads((place / _LOCK).read_text(encoding="utf-8"))
            needed = _needed(request.image, found, extras)
            if not needed:
                break
            extras += needed
        known = {*request.provided, *stood_in}
        packages = tuple(each for each in found["packages"] if package_name(each["name"]) not in known)
        _check_extras(request.image, done.stderr, packages, place, environment)
        sources = {package_name(each["name"]): each for each in packages if is_source(each)}
        builds = {
            name: build_system(name, source_texts(name, each, place, environment)) for name, each in sources.items()
        }
        return Resolved(packages, builds)


def _warn_of_strategy(strategy: str | None) -> None:
    if strategy and strategy.startswith("unsafe"):
        _log.warning(
            "Packages are taken from whichever index has the best version, as this machine's setting index-strategy=%s "
            "of uv says: whoever may publish on one index can replace packages of the others.",
            strategy,
        )


def _words(request: Request, target: str) -> list[str]:
    words = [find_uv(), "pip", "compile", "--no-header", "--no-progress", "--color=never"]
    words += ["--generate-hashes", "--output-file", _LOCK, "pyproject.toml", "--python", sys.executable]
    words += ["--constraints", _CONSTRAINTS] if request.rules.constraints else []
    words += ["--overrides", _OVERRIDES] if request.rules.overrides else []
    words += ["--python-version", request.python, "--python-platform", target]
    newest = request.image.exclude_newer
    return [*words, *(("--exclude-newer", newest) if newest else ())]


def _prepare(place: Path, request: Request, settings: UvSettings) -> dict[str, str]:
    """Write uv's input into a folder, and return the environment that points to it."""
    known = {package.pin: _stand_in(place, package) for package in _stood_in_for(request)}
    asked = requirements_file(request.image, python=request.python, mirrors=settings.scoped, known=known)
    rules = {_CONSTRAINTS: request.rules.constraints, _OVERRIDES: request.rules.overrides}
    texts = {**settings.files, "pyproject.toml": asked, **{name: "\n".join(each) for name, each in rules.items()}}
    for name, text in texts.items():
        (place / name).touch(mode=0o600)
        (place / name).write_text(text, encoding="utf-8")
    return _environment({name: str(place / file) for name, file in settings.variables.items()} | settings.more)


def _stood_in_for(request: Request) -> list[Package]:
    """Return the packages pinned by a lock of the user's, except those of which the image requests extras.

    There is nothing to find out about them. Their versions may be on an index that is not the first with the package,
    which does not matter, as they are installed by their hashes.
    """
    with_extras = {requirement_name(entry) for entry in request.entries if "[" in entry.partition(";")[0]}
    return [each for each in request.rules.pinned if "==" in each.pin and each.name not in with_extras]


def _stand_in(place: Path, package: Package) -> str:
    """Create an empty wheel with the name and version of a package, and return the requirement for it."""
    version = package.pin.partition("==")[2]
    info = f"{package.name.replace('-', '_')}-{version}"
    path = place / f"{info}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{info}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}.dist-info/RECORD", "")
    return f"{package.name} @ {path.as_uri()}"


def _needed(image: Image, found: dict[str, Any], extras: list[str]) -> list[str]:
    """Return the scoped packages in the result that came from other indexes, because no requirement lists them."""
    names = {package_name(entry["name"]) for entry in found["packages"]}
    return [name for name in unlisted(image) if name in names and name not in extras]


def _environment(settings: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with the site's settings of package tools instead of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "VIRTUAL_ENV"))}
    kept |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    for name in ("NO_PROXY", "no_proxy"):  # folders are served on the loopback interface, which proxies do not reach
        kept[name] = ",".join(filter(None, ("127.0.0.1,localhost", os.environ.get(name))))
    return {**kept, **settings, **uv_variables(), "UV_PYTHON_DOWNLOADS": "never"}


def _pins(preferred: Iterable[tuple[str, str]]) -> str:
    """Return an earlier result, reduced to what uv needs to prefer its versions."""
    pins = [f'{{ name = "{name}", version = "{version}" }}' for name, version in preferred if version]
    return f'lock-version = "1.0"\ncreated-by = "skyward"\npackages = [{", ".join(pins)}]\n'


def _check_extras(
    image: Image, said: str, packages: Sequence[Mapping[str, Any]], place: Path, environment: Mapping[str, str]
) -> None:
    """Check that packages have the extras that the image requests.

    Args:
        image: the image, with all its requirements in `pip`.
        said: uv's output from resolving them.
        packages: the result, as entries of a `pylock.toml`.
        place: a folder for downloads, which contains the site's settings of package tools.
        environment: the variables that point to these settings.

    Raises:
        ConfigError: a package lacks one; the message names those it has. Extras requested by packages do not count, as
            the user cannot correct them.
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
    except InvalidRequirement:  # a path, whose extras are checked when its files are read
        return set()


def _offered(
    name: str, packages: Sequence[Mapping[str, Any]], place: Path, environment: Mapping[str, str]
) -> list[str] | None:
    """Return the extras in a wheel's metadata; None if there is no wheel or it is unavailable."""
    entry = next((each for each in packages if package_name(each["name"]) == name), {})
    for file in [*entry.get("wheels", ())[:1], *([entry["archive"]] if "archive" in entry else [])]:
        try:
            return offered_extras(_metadata(name, file, place, environment))
        except (ImageError, BadZipFile, StopIteration):
            return None
    return None


def _metadata(name: str, file: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> Message:
    """Return the metadata of a wheel: separately if the index has it (PEP 658), else from the whole wheel."""
    if "url" in file and not file["url"].startswith("file:"):
        try:
            alone = fetched(name, {"url": f"{file['url']}.metadata"}, place, environment)
            return parsed_metadata(alone.read_text(encoding="utf-8"))
        except ImageError:  # indexes need not have it
            pass
    return wheel_metadata(fetched(name, file, place, environment))


def _failure(request: Request, said: str) -> SkywardError:
    """Return the error for uv's output."""
    image = request.image
    said = _SERVED.sub("file://", without_logins(said)).strip()
    said = re.sub(rf"{PROJECT}\s+depends\s+on", "your image requires", said)
    said = _STOOD_IN.sub(r"==\1", said)
    flat = " ".join(said.split())
    name = next((found["name"] for pattern in _MISSING if (found := pattern.search(flat))), None)
    tail = f" uv said:\n{said}"
    if "unsafe-best-match" in said:  # uv's own hint: the first index has only other versions of it
        tail = (
            " The first index that has a package is the only one asked for it. Name the index of such a package in "
            "Image(pip_indexes=...), or set UV_INDEX_STRATEGY=unsafe-best-match if all of this machine's indexes may "
            f"replace each other's packages.{tail}"
        )
    if _CERTIFICATE.search(said):
        return ImageError(
            "A package index's certificate was not trusted. If this site intercepts TLS, point SSL_CERT_FILE to the "
            f"bundle that has its CA.{tail}"
        )
    if refused := _REFUSED.search(said):
        return ImageError(
            f"A package index answered with HTTP status {refused[1]}. If it wants a name and password, put them into "
            f"this machine's settings of pip or uv, or into ~/.netrc.{tail}"
        )
    if _UNREACHABLE.search(said):
        return ImageError(
            "A package source could not be reached. Check network and proxy settings; an index can be replaced by a "
            f"mirror or a folder of wheels in SKYWARD_INDEXES.{tail}"
        )
    if "were found in the cache" in flat or "network was disabled" in flat:
        return ImageError(f"The packages are not in uv's cache, and this machine works offline (UV_OFFLINE).{tail}")
    if unfit := _UNFIT.search(flat):
        return _unfit(request, unfit[1], flat, tail)
    if pinned := next((each.pin for each in request.rules.pinned if name and each.name == package_name(name)), None):
        return ConfigError(
            f"The lock of your project has {pinned}, which contradicts what the image asks for beside it. Change one "
            f"of them, and lock the project anew.{tail}"
        )
    if name:
        return ImageError(
            f"No package {name!r} that fits is to be had; asked for by {_who(image, [name])}. Check its name and "
            f"version, and where it should come from.{tail}"
        )
    if "unsatisfiable" in flat or "No solution found" in flat:
        return ConfigError(
            f"The requirements contradict each other: {_who(image, _blamed(image, flat))}. Loosen one of them.{tail}"
        )
    if built := _BUILD.search(said):
        return ImageError(
            f"What {built[1]!r} needs could not be found out: it has no wheel, and its build failed here; asked for by "
            f"{_who(image, [built[1]])}. Choose a version that has a wheel.{tail}"
        )
    return ImageError(f"The requirements could not be locked.{tail}")


def _unfit(request: Request, name: str, said: str, tail: str) -> ImageError:
    """Return the error for a package whose files are all for other machines or a newer C library than the base's."""
    system = request.libc or "glibc 2.28, as the base's is not known"
    needed = sorted(int(each) for each in re.findall(r"`manylinux_2_(\d+)_", said.partition("Wheels are available")[2]))
    newer = f" Its wheels need glibc 2.{needed[0]}: take a newer base, or an older version of it." if needed else ""
    return ImageError(
        f"{name!r} has no wheel for {request.platform}, Python {request.python} and {system}, and no source package; "
        f"asked for by {_who(request.image, [name])}.{newer or ' Choose another version of it.'}{tail}"
    )


def _blamed(image: Image, said: str) -> list[str]:
    """Return the image's own packages that uv's explanation names, as in "your image requires six<1.5"."""
    words = {package_name(word) for word in re.findall(r"your image requires ([A-Za-z0-9][A-Za-z0-9._-]*)", said)}
    return sorted(words & {requirement_name(entry) for entry in image.pip})


def _who(image: Image, names: Iterable[str]) -> str:
    """Return the origins of packages: of entries that name one; for a dependency, all that may require it."""
    wanted = {package_name(name) for name in names}
    entries = [entry for entry in image.pip if requirement_name(entry) in wanted]
    if not entries:
        return "a dependency of " + ", ".join(image.pip)
    return " and ".join(origin_of(image, "pip", entry) for entry in entries)
