"""Lock files beside declarations (`images/NAME.lock`), committed and shared by all who build the image.

For each platform and Python, a lock file holds the requirements, the digest of the base, and the exact packages. Its
order is stable, and it contains no time, no machine's paths, and no index that the image does not name.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from skyward.builder.packages.lock import Request, parsed
from skyward.errors import ConfigError
from skyward.image import Lock, Package

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The part of a lock file for one platform and Python.

    Attributes:
        platform: OCI platform of the nodes.
        python: minor version of the nodes.
        asked: requirements of the image, in the form of `asked_for`.
        base: digest of the base; "" for one built from a Dockerfile.
        is_pulled: whether the digest comes from a registry; otherwise only one engine knows it.
        lock: the exact packages.
    """

    platform: str
    python: str
    asked: Mapping[str, Any]
    base: str
    is_pulled: bool
    lock: Lock

    @property
    def target(self) -> str:
        """Description of the platform and Python."""
        return f"{self.platform}, Python {self.python}"


def asked_for(request: Request, folder: Path) -> dict[str, Any]:
    """Return the inputs of a lock in the form of a lock file in that folder; a build compares all of them."""
    settings = {name: value for name, value in request.settings.items() if name not in ("python", "platform")}
    if "pinned" in settings:
        settings["pinned"] = hashlib.sha256("\n".join(settings["pinned"]).encode()).hexdigest()
    if "sources" in settings:
        settings["sources"] = [
            os.path.relpath(each, folder) if each.startswith("/") else each for each in settings["sources"]
        ]
    asked = {
        "base": str(request.image.base or ""),
        "requirements": sorted(request.entries),
        "local": sorted(f"{each.name} {each.needs}".strip() for each in request.packages),
        "build": {each.name: list(each.build.requires) for each in request.packages if each.build},
        **settings,
    }
    return {name.replace("_", "-").replace(" ", "-"): value for name, value in asked.items() if value}


def read_lock_file(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a lock file.

    Raises:
        ConfigError: it cannot be read, was edited, or is from another version of skyward.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The lock {shown(path)} cannot be read: {error}. {_command(path)}") from None
    if document.get("version") != _VERSION:
        raise ConfigError(
            f"The lock {shown(path)} has the form {document.get('version')!r}, and this version of skyward reads "
            f"{_VERSION}. {_command(path)}"
        )
    try:
        return tuple(_entry(table) for table in document.get("target", ()))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"The lock {shown(path)} is not as skyward wrote it: {error!r}. {_command(path)}") from None


def write_lock_file(path: Path, declaration: str, entries: Sequence[Entry]) -> bool:
    """Write a lock file unless it has the same content already; return whether it was written.

    Args:
        path: path of the lock file.
        declaration: the file that declares the image, relative to the lock's folder.
        entries: entries in any order.

    Raises:
        ConfigError: it cannot be written.
    """
    import tomli_w

    document = {
        "version": _VERSION,
        "declaration": declaration,
        "target": [_table(each) for each in sorted(entries, key=_order)],
    }
    text = f"# The exact packages of {declaration}, written by `skyward lock`. Commit it, and do not edit it.\n"
    text += tomli_w.dumps(document)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"The lock {shown(path)} cannot be written: {error}.") from None
    return True


def entry_for(path: Path, request: Request) -> Entry:
    """Return the entry from which an image is built.

    Raises:
        ConfigError: there is no lock file, or it is not for this platform or Python, or the image's requirements have
            changed; the message names the difference and the command to run.
    """
    if not path.is_file():
        raise ConfigError(f"Image: lock names {shown(path)}, which does not exist. {_command(path)}")
    entries = read_lock_file(path)
    for_target = [each for each in entries if (each.platform, each.python) == (request.platform, request.python)]
    if not for_target:
        known = "; ".join(each.target for each in entries) or "nothing"
        raise ConfigError(
            f"The lock {shown(path)} has no packages for {request.platform}, Python {request.python}; it is for "
            f"{known}. {_command(path, f' --platform {request.platform}')}"
        )
    asked = asked_for(request, path.parent)
    found = next((each for each in for_target if each.asked == asked), None)
    if found is None:
        changes = "; ".join(differences(for_target[0].asked, asked))
        raise ConfigError(f"The lock {shown(path)} does not fit the image any more: {changes}. {_command(path)}")
    return found


def wrong_base(path: Path, base: str, found: str, entry: Entry) -> ConfigError:
    """Return the error for a base known to only one engine that differs from the locked one."""
    return ConfigError(
        f"The lock {shown(path)} was made with another base: {base!r} is {found[:19]} here and was {entry.base[:19]}. "
        f"It comes from no registry, so that the other cannot be fetched. {_command(path)}"
    )


def not_upgraded(path: Path) -> ConfigError:
    """Return the error for a build with newer packages than those of its lock."""
    return ConfigError(f"The packages are those of {shown(path)}. Upgrade that: `skyward lock --upgrade {_of(path)}`.")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Describe the differences between two sets of requirements."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if name == "pinned":
            yield "the project's own lock was changed"
        elif isinstance(old or [], list) and isinstance(new or [], list):
            signs = [f"+{each}" for each in new or [] if each not in (old or [])]
            signs += [f"-{each}" for each in old or [] if each not in (new or [])]
            yield f"{name} {', '.join(map(str, signs))}"
        else:
            yield f"{name} was {old!r}, is {new!r}"


def _entry(table: Mapping[str, Any]) -> Entry:
    base = table.get("base", {})
    return Entry(
        platform=table["platform"],
        python=table["python"],
        asked=table["asked"],
        base=base.get("digest", ""),
        is_pulled=base.get("pulled", False),
        lock=Lock(**{name: parsed(value) for name, value in table["lock"].items()}),
    )


def _table(entry: Entry) -> dict[str, Any]:
    table: dict[str, Any] = {"platform": entry.platform, "python": entry.python}
    if entry.base:
        table["base"] = {"digest": entry.base, "pulled": entry.is_pulled}
    parts = {each.name: getattr(entry.lock, each.name) for each in fields(Lock) if each.name != "sources"}
    lock = {name: _plain(value) for name, value in parts.items() if value}
    return {**table, "asked": dict(entry.asked), "lock": lock}


def _order(entry: Entry) -> tuple[str, str, str]:
    return entry.platform, entry.python, repr(sorted(entry.asked.items()))


def _plain(value: Any) -> Any:
    """Convert a part of a lock to TOML values: packages become tables without their unknown fields."""
    if isinstance(value, Package):
        known = {each.name: getattr(value, each.name) for each in fields(Package)}
        return {name: _plain(part) for name, part in known.items() if part not in (None, "", False)}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _command(path: Path, more: str = "") -> str:
    return f"Lock it: `skyward lock{more} {_of(path)}`."


def _of(path: Path) -> str:
    """Return the file that declares the image of a lock, if the lock names it."""
    try:
        declaration = tomllib.loads(path.read_text(encoding="utf-8")).get("declaration")
    except (OSError, ValueError):
        declaration = None
    return shown(path.parent / declaration) if isinstance(declaration, str) else "FILE"


def shown(path: Path) -> str:
    """Return a path for users: relative to the working directory if it is inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
