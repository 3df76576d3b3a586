"""One run of `uv pip compile` with this machine's package settings, and the errors of its failures."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skyward.builder.folders import scratch_folder, uv_variables
from skyward.builder.packages.local import BuildSystem
from skyward.builder.packages.pylock import Target, packages_of, read_pylock
from skyward.builder.packages.sources import source_build
from skyward.builder.packages.uv import find_uv, run_uv
from skyward.builder.site.settings import read_site, uv_settings, with_sources
from skyward.errors import ConfigError, ImageError, SkywardError
from skyward.image import Package, origin_of, requirements_file
from skyward.image.lock import PROJECT, scopes, unlisted
from skyward.model.image import Image, package_name, requirement_name
from skyward.model.image_fields import without_logins

if TYPE_CHECKING:
    from skyward.builder.packages.lock import Request

_log = logging.getLogger(__name__)
_LOCK, _CONSTRAINTS, _OVERRIDES = "pylock.toml", "constraints.txt", "overrides.txt"
_KEPT = ("UV_CACHE_DIR", "UV_HTTP_RETRIES", "UV_KEYRING_PROVIDER", "UV_OFFLINE")
_MISSING = (
    re.compile(r"Because (?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])? was not found in"),
    re.compile(r"there (?:is|are) no versions? of (?P<name>[A-Za-z0-9._-]+)"),
    re.compile(r"only (?:the following versions of )?(?P<name>[A-Za-z0-9._-]+)\S* (?:is|are) available"),
    re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:[=<>!~]\S+)? has no (?:wheels|usable wheels)"),
)
_UNFIT = re.compile(r"([A-Za-z0-9._-]+)(?:[=<>!~]=?\S+)? (?:has|have) no wheels with a matching platform tag")
# why uv could not ask an index, and what to do about it
_UNAVAILABLE = (
    (
        re.compile(r"UnknownIssuer|invalid peer certificate|certificate verify failed", re.IGNORECASE),
        "The certificate of a package index is not trusted. If this site intercepts TLS, set SSL_CERT_FILE to the "
        "bundle that has its CA.",
    ),
    (
        re.compile(r"HTTP status (?:client|server) error \((\d+)"),
        "A package index answered with HTTP status {}. If it requires a login, put that into this machine's settings "
        "of pip or uv, or into ~/.netrc.",
    ),
    (
        re.compile(r"Failed to fetch|Request failed|error sending request|dns error|timed out", re.IGNORECASE),
        "A package index could not be reached. Check network and proxy settings; SKYWARD_INDEXES replaces an index "
        "with a mirror or a folder of wheels.",
    ),
    (
        re.compile(r"were found in the cache|network was disabled"),
        "The packages are not in uv's cache, and uv is set to work offline (UV_OFFLINE).",
    ),
)
_NO_EXTRA = re.compile(r"The package `([A-Za-z0-9._-]+)[^`]*` does not have an extra named `([^`]+)`")
_BUILD = re.compile(r"Failed to build `([A-Za-z0-9._-]+)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of resolving a request: packages, and the build systems of those without a wheel, by name."""

    packages: tuple[Package, ...] = ()
    builds: dict[str, BuildSystem] = field(default_factory=dict)


def resolve(request: Request, target: str, preferred: Iterable[Package], *, only_sources: bool = False) -> Resolved:
    """Resolve a request with uv, and read the build systems of its source packages.

    Args:
        request: the requirements to lock.
        target: the platform in uv's terms.
        preferred: packages whose versions are kept if they still fit.
        only_sources: take the named packages without their dependencies, and as source packages.

    Raises:
        ConfigError: the requirements contradict each other, or this machine's settings are wrong.
        ImageError: a package or an index is unavailable, or uv is missing.
    """
    rules = request.rules
    constraints = (*rules.constraints, *(each.pin for each in rules.pinned))
    words = [find_uv(), "pip", "compile", "--no-header", "--no-progress", "--color=never", "--generate-hashes"]
    words += ["--output-file", _LOCK, "pyproject.toml", "--python", sys.executable]
    words += ["--python-version", request.python, "--python-platform", target]
    words += ["--constraints", _CONSTRAINTS] if constraints else []
    words += ["--overrides", _OVERRIDES] if rules.overrides else []
    words += ["--exclude-newer", request.image.exclude_newer] if request.image.exclude_newer else []
    if only_sources:
        words += ["--no-deps", *(f"--no-binary={requirement_name(entry)}" for entry in request.entries)]
    with scratch_folder("lock") as place:
        site = with_sources(read_site(), rules.sources)
        _warn_of_strategy(site.indexes.strategy)
        settings = uv_settings(site, request.image)
        local = tuple(each.requirement for each in request.packages if each.needs)
        pip = (*(entry for entry in request.image.pip if entry in request.open), *local)
        asked = requirements_file(request.image, pip, python=request.python, places=settings.scoped)
        texts = {_CONSTRAINTS: "\n".join(constraints), _OVERRIDES: "\n".join(rules.overrides), _LOCK: _pins(preferred)}
        for name, text in (settings.files | texts | {"pyproject.toml": asked}).items():
            (place / name).touch(mode=0o600)
            (place / name).write_text(text, encoding="utf-8")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "VIRT"))
        }
        environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {name: str(place / file) for name, file in settings.variables.items()} | settings.more
        environment |= {**uv_variables(), "UV_PYTHON_DOWNLOADS": "never"}
        extras: list[str] = []
        while True:
            command = [*words, *(word for name in extras for word in ("--extra", name))]
            done = run_uv(command, place, environment)
            if done.returncode:
                raise _failure(request, done.stderr)
            found = read_pylock((place / _LOCK).read_text(encoding="utf-8"), "uv's result").packages
            names = {package_name(each.name) for each in found}
            # scoped packages that came from other indexes, because no requirement lists them
            needed = [name for name in unlisted(request.image, pip) if name in names and name not in extras]
            if not needed:
                break
            extras += needed
        _check_extras(request.image, done.stderr)
        known = {each.name for each in request.packages}
        others = {package_name(each.name): each for each in found if package_name(each.name) not in known}
        if paths := sorted(name for name, each in others.items() if each.directory):
            raise ConfigError(
                f"{', '.join(paths)} comes from a folder that a local project names in [tool.uv.sources]. Run "
                "`uv lock` in that project, or name the folder in pip= too."
            )
        kind = Target(request.python, request.platform)
        packages = tuple(packages_of(others.values(), scopes(request.image), kind))
        sources = [each.name for each in packages if each.is_source]
        return Resolved(packages, {name: source_build(others[name], place, environment) for name in sources})


def _warn_of_strategy(strategy: str | None) -> None:
    if strategy and strategy.startswith("unsafe"):
        _log.warning(
            "Packages are taken from whichever index has the best version, as this machine's setting index-strategy=%s "
            "of uv says: whoever may publish on one index can replace packages of the others.",
            strategy,
        )


def _pins(preferred: Iterable[Package]) -> str:
    """Return an earlier result, reduced to what uv needs to prefer its versions."""
    pins = [each.pin.partition("==") for each in preferred]
    tables = [f'{{ name = "{name}", version = "{version}" }}' for name, _, version in pins if version]
    return f'lock-version = "1.0"\ncreated-by = "skyward"\npackages = [{", ".join(tables)}]\n'


def _check_extras(image: Image, said: str) -> None:
    """Refuse an extra that a package lacks. Those that packages request do not count: the user cannot correct them."""
    for name, extra in _NO_EXTRA.findall(" ".join(said.split())):
        for entry in image.pip:
            listed = re.search(r"\[([^\]]*)\]", entry.partition(";")[0])
            if listed and extra in map(package_name, listed[1].split(",")) and requirement_name(entry) in (name, ""):
                raise ConfigError(f"{name} has no extra {extra!r} ({origin_of(image, 'pip', entry)}).")


def _failure(request: Request, said: str) -> SkywardError:
    """Return the error for uv's output."""
    image = request.image
    said = re.sub(rf"{PROJECT}\s+depends\s+on", "your image requires", without_logins(said)).strip()
    flat = " ".join(said.split())
    name = next((each["name"] for pattern in _MISSING if (each := pattern.search(flat))), None)
    tail = f" uv said:\n{said}"
    if "unsafe-best-match" in said:  # uv's own hint: the first index has only other versions of it
        tail = (
            " Only the first index that has a package is searched for it. Name the index of such a package in "
            "Image(pip_indexes=...), or set UV_INDEX_STRATEGY=unsafe-best-match if all of this machine's indexes may "
            f"replace each other's packages.{tail}"
        )
    for pattern, sentence in _UNAVAILABLE:
        if found := pattern.search(flat):
            return ImageError(f"{sentence.format(*found.groups())}{tail}")
    if unfit := _UNFIT.search(flat):
        return _unfit(request, unfit[1], flat, tail)
    if pinned := next((each.pin for each in request.rules.pinned if name and each.name == package_name(name)), None):
        return _contradiction(pinned, tail)
    if name:
        return ImageError(f"No version of {name!r} satisfies {_who(image, [name])}.{tail}")
    if "unsatisfiable" in flat or "No solution found" in flat:
        blamed = {package_name(each) for each in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*(?===)", flat)}
        if pinned := next((each.pin for each in request.rules.pinned if each.name in blamed), None):
            return _contradiction(pinned, tail)
        return ConfigError(f"The requirements contradict each other: {_who(image, _blamed(image, flat))}.{tail}")
    if built := _BUILD.search(said):
        return ImageError(
            f"The requirements of {built[1]!r} are unknown: it has no wheel, and its build failed here "
            f"({_who(image, [built[1]])}). Choose a version that has a wheel.{tail}"
        )
    return ImageError(f"The requirements could not be locked.{tail}")


def _contradiction(pinned: str, tail: str) -> ConfigError:
    return ConfigError(
        f"The lock of your project has {pinned}, which contradicts another requirement of the image. Change one of "
        f"them, and lock the project again.{tail}"
    )


def _unfit(request: Request, name: str, said: str, tail: str) -> ImageError:
    """Return the error for a package whose files are all for other machines or a newer C library than the base's."""
    system = request.libc or "glibc 2.28 (that of the base is unknown)"
    needed = sorted(int(each) for each in re.findall(r"`manylinux_2_(\d+)_", said.partition("Wheels are available")[2]))
    remedy = f"Its wheels need glibc 2.{needed[0]}: use a newer base, or an older version." if needed else ""
    return ImageError(
        f"{name!r} has no wheel for {request.platform}, Python {request.python} and {system}, and no source package "
        f"({_who(request.image, [name])}). {remedy or 'Choose another version.'}{tail}"
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
        listed = ", ".join(entry for entry in image.pip)
        return f"a dependency of {listed}"
    return " and ".join(dict.fromkeys(origin_of(image, "pip", entry) for entry in entries))
