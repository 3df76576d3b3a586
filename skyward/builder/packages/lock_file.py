"""Lock files beside declarations (`images/NAME.lock`), committed and shared by all who build the image.

For each platform and Python, a lock file holds the requirements, the digest of the base, and the exact packages. Its
order is stable, and it contains no time, no machine's paths, and no index that the image does not name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from skyward.builder.packages.lock import Request, packed, unpacked
from skyward.errors import ConfigError
from skyward.image import Lock

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The part of a lock file for one platform and Python.

    Attributes:
        platform: OCI platform of the nodes.
        python: minor version of the nodes.
        asked: requirements of the image, in the form of `Request.asked`.
        base: digest of the base; "" for one built from a Dockerfile.
        is_pulled: whether the digest comes from a registry; otherwise only one engine knows it.
        lock: the exact packages.
    """

    platform: str
    python: str
    asked: tuple[str, ...]
    base: str
    is_pulled: bool
    lock: Lock

    @property
    def target(self) -> str:
        """Description of the platform and Python."""
        return f"{self.platform}, Python {self.python}"


def read_lock_file(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a lock file.

    Raises:
        ConfigError: it cannot be read, was edited, or is from another version of skyward.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        if document.get("version") != _VERSION:
            raise ValueError(f"it has version {document.get('version')!r}, not {_VERSION}")
        return tuple(
            Entry(**{**table, "asked": tuple(table["asked"]), "lock": unpacked(table["lock"])})
            for table in document["target"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"The lock {shown(path)} cannot be read: {error}. {_command(path)}") from None


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

    entries = sorted(entries, key=lambda each: (each.platform, each.python, each.asked))
    tables = [{each.name: getattr(entry, each.name) for each in fields(entry)} for entry in entries]
    document = {
        "version": _VERSION,
        "declaration": declaration,
        "target": [{**table, "lock": packed(table["lock"])} for table in tables],
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
    asked = request.asked(path.parent)
    found = next((each for each in for_target if each.asked == asked), None)
    if found is None:
        before = for_target[0].asked
        changes = ", ".join(f"{'-+'[each in asked]}{each}" for each in sorted({*before} ^ {*asked}))
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
