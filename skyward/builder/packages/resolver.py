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
from skyward.builder.packages.pylock import Target, packages_of, read_pylock
from skyward.builder.packages.sources import source_build
from skyward.builder.packages.uv import find_uv, run_uv
from skyward.builder.site.settings import read_site, uv_settings, with_sources
from skyward.errors import ConfigError, ImageError
from skyward.image import Package, origin_of, requirements_file
from skyward.image.lock import PROJECT, scopes, unlisted
from skyward.model.image import package_name, requirement_name
from skyward.model.image_fields import without_logins

if TYPE_CHECKING:
    from skyward.builder.packages.lock import Request

_log = logging.getLogger(__name__)
_LOCK, _CONSTRAINTS, _OVERRIDES = "pylock.toml", "constraints.txt", "overrides.txt"
_KEPT = ("UV_CACHE_DIR", "UV_HTTP_RETRIES", "UV_KEYRING_PROVIDER", "UV_OFFLINE")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of resolving a request: packages, and the build requirements of those without a wheel, by name."""

    packages: tuple[Package, ...] = ()
    builds: dict[str, tuple[str, ...]] = field(default_factory=dict)


def resolve(request: Request, target: str, preferred: Iterable[Package], *, only_sources: bool = False) -> Resolved:
    """Resolve a request with uv, and read the build requirements of its source packages.

    Args:
        request: the requirements to lock.
        target: the platform in uv's terms.
        preferred: packages whose versions are kept if they still fit.
        only_sources: take the named packages without their dependencies, and as source packages.

    Raises:
        ConfigError: this machine's settings are wrong.
        ImageError: a package or an index is unavailable, requirements contradict each other.
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
        if (strategy := site.indexes.strategy or "").startswith("unsafe"):
            _log.warning(
                "Packages are taken from whichever index has the best version, as this machine's setting "
                "index-strategy=%s of uv says: whoever may publish on one index can replace packages of the others.",
                strategy,
            )
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
        if "warning:" in done.stderr:  # such as of an extra that a package does not have
            _log.warning("uv said: %s", without_logins(done.stderr.strip()))
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


def _pins(preferred: Iterable[Package]) -> str:
    """Return an earlier result, reduced to what uv needs to prefer its versions."""
    pins = [each.pin.partition("==") for each in preferred]
    tables = [f'{{ name = "{name}", version = "{version}" }}' for name, _, version in pins if version]
    return f'lock-version = "1.0"\ncreated-by = "skyward"\npackages = [{", ".join(tables)}]\n'


def _failure(request: Request, said: str) -> ImageError:
    """Return the error for uv's output."""
    said = re.sub(rf"{PROJECT}\s+depends\s+on", "your image requires", without_logins(said)).strip()
    words = {package_name(word) for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]", said)}
    image = request.image
    named = dict.fromkeys(origin_of(image, "pip", entry) for entry in image.pip if requirement_name(entry) in words)
    text = " ".join(["The requirements cannot be locked", *([f"({', '.join(named)})"] if named else [])]) + "."
    if "unsafe-best-match" in said:  # uv's own hint: the first index has only other versions of it
        text += (
            " Only the first index that has a package is searched for it. Name the index of such a package in "
            "Image(pip_indexes=...), or set UV_INDEX_STRATEGY=unsafe-best-match if all of this machine's indexes may "
            "replace each other's packages."
        )
    return ImageError(f"{text} uv said:\n{said}")
