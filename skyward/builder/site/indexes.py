"""Package indexes of this machine, from the settings of pip and uv, and the site's index map.

Only the first index that has a package name is asked for it, which is uv's default: otherwise anybody who may publish
on a public index could replace a private package by a higher version of the same name. Indexes are asked in uv's order:
the extra ones as listed, then the default one. pip's settings define no order; PyPI goes last wherever it is listed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from skyward.errors import ConfigError

_DEFAULT = ("pypi", "org")  # the labels of the domain that uv and pip use by default
_PUBLIC = (_DEFAULT, ("pypi", "python", "org"))  # domains below which anybody may publish
_SYSTEM_FILES = (Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"))
_UV_SYSTEM = Path("/etc/uv/uv.toml")
_PASSED = (
    *("UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS", "UV_PYTHON_DOWNLOADS_JSON_URL"),
    *("UV_HTTP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"),
)
_LIMIT_S = 60  # a keyring may ask its owner for permission


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """Package sources: URLs, or folders as `file://` URLs or paths.

    Attributes:
        default: the index asked last; None for the tools' default, PyPI.
        extra: further indexes, asked before it in this order.
        find_links: folders or pages that list files.
        insecure_hosts: hosts whose certificate is not checked.
        no_index: take packages only from `find_links`.
        strategy: which index is preferred for a package that several have, in uv's terms; None for the first that has
            it.
        keyring: whether this machine's keyring has the passwords of indexes that only name a user.
    """

    default: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    insecure_hosts: tuple[str, ...] = ()
    no_index: bool = False
    strategy: str | None = None
    keyring: bool = False


def host_indexes(environ: Mapping[str, str], home: Path) -> Indexes:
    """Return the indexes in this machine's settings of uv, or else in those of pip.

    uv's `index-strategy` and `keyring-provider` apply to both, as uv resolves from both.

    Raises:
        ConfigError: a configuration file cannot be read.
    """
    uv = _uv_indexes(environ, home)
    if uv.default or uv.extra or uv.find_links:
        return uv
    settings = {name: pip_option(name, environ, home) or "" for name in _PIP}
    default, extra = _public_last(settings["index-url"].strip(), settings["extra-index-url"].split())
    return Indexes(
        default=default,
        extra=extra,
        find_links=tuple(settings["find-links"].split()),
        insecure_hosts=tuple(settings["trusted-host"].split()),
        no_index=settings["no-index"] in ("1", "true", "yes", "on"),
        strategy=uv.strategy,
        keyring=uv.keyring or settings["keyring-provider"] in ("import", "subprocess"),
    )


_PIP = ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "keyring-provider")


def _public_last(default: str, extra: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the default index and the others, with public ones last."""
    given = sorted(dict.fromkeys((*extra, *([default] if default else ()))), key=is_public)
    return (given[-1], tuple(given[:-1])) if default else (None, tuple(given))


def is_public(source: str) -> bool:
    """Return whether anybody may publish there."""
    labels = _labels(source)
    return any(labels[-len(domain) :] == domain for domain in _PUBLIC)


def is_default(index: str) -> bool:
    """Return whether this is the index that uv and pip use by default."""
    return _labels(index) == _DEFAULT


def _labels(source: str) -> tuple[str, ...]:
    return tuple((urlsplit(source).hostname or "").split("."))


def pip_option(name: str, environ: Mapping[str, str], home: Path) -> str | None:
    """Return one of pip's options on this machine: its variable, else the last of pip's files that has it.

    Raises:
        ConfigError: a configuration file cannot be read.
    """
    given = environ.get(f"PIP_{name.upper().replace('-', '_')}")
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if given is not None or chosen == "/dev/null":
        return given
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*_SYSTEM_FILES, home / ".pip/pip.conf", config / "pip/pip.conf"]
    files += [home / "Library/Application Support/pip/pip.conf"] if sys.platform == "darwin" else []
    files += [Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf", *([Path(chosen)] if chosen else [])]
    found = None
    for file in files:
        if os.access(file, os.R_OK):
            found = _pip_file(file).get(name, found)
    return found


def _pip_file(file: Path) -> dict[str, str]:
    from configparser import Error, RawConfigParser  # loaded only if there is such a file

    parser = RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (Error, UnicodeDecodeError) as error:
        raise ConfigError(f"pip's configuration file {file} cannot be read: {error}.") from None
    sections = [section for section in ("global", "install") if parser.has_section(section)]
    return {name.replace("_", "-"): value for section in sections for name, value in parser.items(section)}


def mirrors(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the site's map from an index to its replacement, a URL or a folder of wheels: SKYWARD_INDEXES, in JSON.

    Raises:
        ConfigError: it is not a map of strings.
    """
    try:
        found = json.loads(environ.get("SKYWARD_INDEXES") or "{}")
        return {url.rstrip("/"): target + "" for url, target in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"SKYWARD_INDEXES must map URLs to URLs or folders of wheels, in JSON: {error}.") from None


def passed_on(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return variables of package tools that hold in builds as well; those for Python builds also from uv's files."""
    settings = _uv_config(environ, home)
    options = {name: name.removeprefix("UV_").lower().replace("_", "-") for name in _PASSED}
    found = {name: str(environ.get(name) or settings.get(option, "")) for name, option in options.items()}
    # a build does not see folders of this machine
    return {name: value for name, value in found.items() if value and not value.startswith(("/", "file:"))}


def _uv_indexes(environ: Mapping[str, str], home: Path) -> Indexes:
    """Return the indexes in uv's variables and configuration files; variables take precedence."""
    settings = _uv_config(environ, home)

    def words(name: str) -> list[str]:
        return environ.get(name, "").split()

    listed = [entry for entry in settings.get("index", ()) if not entry.get("explicit")]
    tables = [(_with_login(entry.get("name", ""), entry["url"], environ), entry.get("default")) for entry in listed]
    default = next((url for url, is_default in tables if is_default), settings.get("index-url"))
    named = [_of_word(word, environ) for word in words("UV_INDEX")]
    extra = [*named, *words("UV_EXTRA_INDEX_URL"), *(url for url, is_default in tables if not is_default)]
    chosen = next((_of_word(word, environ) for word in words("UV_DEFAULT_INDEX")), None)
    links = [link for word in words("UV_FIND_LINKS") for link in word.split(",")]
    return Indexes(
        default=chosen or environ.get("UV_INDEX_URL") or default,
        extra=tuple(dict.fromkeys([*extra, *settings.get("extra-index-url", ())])),
        find_links=tuple(dict.fromkeys([*links, *settings.get("find-links", ())])),
        insecure_hosts=(*words("UV_INSECURE_HOST"), *settings.get("allow-insecure-host", ())),
        no_index=bool(settings.get("no-index")),
        strategy=environ.get("UV_INDEX_STRATEGY") or settings.get("index-strategy"),
        keyring=(environ.get("UV_KEYRING_PROVIDER") or settings.get("keyring-provider")) == "subprocess",
    )


def _uv_config(environ: Mapping[str, str], home: Path) -> dict[str, Any]:
    """Return uv's settings from its files; those of `[pip]` apply to `uv pip`, which builds use."""
    chosen = environ.get("UV_CONFIG_FILE")
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"
    files = [Path(chosen)] if chosen else [file for file in (_UV_SYSTEM, user) if file.is_file()]
    if environ.get("UV_NO_CONFIG", "") in ("1", "true"):
        return {}
    found: dict[str, Any] = {}
    for settings in map(_toml, files):
        found |= settings | settings.get("pip", {})
    return found


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error}.") from None


def _of_word(entry: str, environ: Mapping[str, str]) -> str:
    """Return the index in a word of a variable, where uv allows a name in front: `name=url`."""
    name, equals, url = entry.partition("=")
    return _with_login(name, url, environ) if equals and "://" not in name else entry


def _with_login(name: str, url: str, environ: Mapping[str, str]) -> str:
    """Add the user and password that uv's variables have for an index name."""
    variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    login = [environ.get(f"{variable}_{part}", "") for part in ("USERNAME", "PASSWORD")]
    parts = urlsplit(url)
    if not name or not any(login) or not parts.hostname:
        return url
    words = quote(login[0], safe="") + (f":{quote(login[1], safe='')}" if login[1] else "")
    return parts._replace(netloc=f"{words}@{parts.netloc.rpartition('@')[2]}").geturl()


def folder_of(source: str) -> Path | None:
    """Return the local folder that a source refers to; None for a remote URL."""
    if source.startswith("file:"):
        return Path(unquote(urlsplit(source).path))
    return None if "://" in source else Path(source).expanduser().absolute()


def with_password(url: str) -> str:
    """Add the keyring's password for the user in a URL; unchanged without a user or with a password.

    Raises:
        ConfigError: there is no keyring command, or it does not answer.
    """
    parts = urlsplit(url)
    if not parts.username or parts.password is not None or not parts.hostname:
        return url
    place = parts.netloc.rpartition("@")[2]
    for service in (parts._replace(netloc=place).geturl(), place):
        words = ["keyring", "get", service, unquote(parts.username)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"The keyring, which has the password for {place}, does not answer: {error}.") from None
        if done.returncode == 0 and (password := done.stdout.rstrip("\n")):
            return parts._replace(netloc=f"{parts.username}:{quote(password, safe='')}@{place}").geturl()
    return url
