"""Package indexes of this machine, from the settings of pip and uv, the site's index map, and the keyring.

Only the first index that has a package name is asked for it, which is uv's default: otherwise anybody who may publish
on a public index could replace a private package by a higher version of the same name. Indexes are asked in uv's order:
the extra ones as listed, then the default one. pip's settings define no order; PyPI goes last wherever it is listed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from skyward.errors import ConfigError

_DEFAULT = ("pypi", "org")  # the labels of the domain that uv and pip use by default
_PUBLIC = (_DEFAULT, ("pypi", "python", "org"))  # domains below which anybody may publish
_SYSTEM_FILES = (Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"))
PYTHON_MIRROR = "UV_PYTHON_INSTALL_MIRROR"
PYTHON_VARIABLES = (PYTHON_MIRROR, "UV_PYTHON_DOWNLOADS", "UV_PYTHON_DOWNLOADS_JSON_URL")
_UV_SYSTEM = Path("/etc/uv/uv.toml")
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

    uv's setting `index-strategy` (UV_INDEX_STRATEGY) applies to both, as pip has no such setting.

    Raises:
        ConfigError: a configuration file cannot be read.
    """
    from_uv = _uv_indexes(environ, home)
    if from_uv.default or from_uv.extra or from_uv.find_links:
        return from_uv
    return replace(_pip_indexes(environ, home), strategy=from_uv.strategy)


def python_builds(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the sources of Python builds in this machine's uv settings, by variable; empty for the default.

    Raises:
        ConfigError: a configuration file cannot be read.
    """
    settings = _uv_config(environ, home)
    found = {name: environ.get(name) or settings.get(_option(name)) for name in PYTHON_VARIABLES}
    return {name: str(value) for name, value in found.items() if value}


def _option(variable: str) -> str:
    return variable.removeprefix("UV_").lower().replace("_", "-")


def pip_option(name: str, environ: Mapping[str, str], home: Path) -> str | None:
    """Return the value of one of pip's options on this machine, such as "cert"."""
    return environ.get(f"PIP_{name.upper().replace('-', '_')}") or _pip_config(environ, home).get(name)


def mirrors(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the site's map from an index to its replacement: a URL, or a folder of wheels.

    It is read from `[tool.skyward.indexes]` in the nearest pyproject.toml and from SKYWARD_INDEXES (a JSON object),
    which takes precedence.

    Raises:
        ConfigError: one of them is not a map of strings.
    """
    found: dict[str, str] = {}
    project = next((file for file in _projects(folder) if file.is_file()), None)
    if project is not None:
        for url, target in _checked_map(_tool_table(project).get("indexes", {}), str(project)).items():
            found[url] = target if "://" in target else str(project.parent / Path(target).expanduser())
    if text := environ.get("SKYWARD_INDEXES"):
        try:
            table = json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"SKYWARD_INDEXES is not JSON ({error}). It maps index URLs to URLs or folders."
            ) from None
        found.update(_checked_map(table, "SKYWARD_INDEXES"))
    return found


def _tool_table(project: Path) -> dict[str, Any]:
    """Return [tool.skyward] of a pyproject.toml; pydantic, which checks it, is loaded only if it exists."""
    table = _toml(project).get("tool", {}).get("skyward")
    if table is None:
        return {}
    from skyward.builder.sources.toml import check_tool_table

    return check_tool_table(project, project.read_text(encoding="utf-8"), table)


def _checked_map(table: Any, place: str) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(target, str) for target in table.values()):
        raise ConfigError(f"{place} must map index URLs to URLs or folders of wheels, both as strings.")
    return {url.rstrip("/"): target for url, target in table.items()}


def _pip_indexes(environ: Mapping[str, str], home: Path) -> Indexes:
    settings = _pip_config(environ, home)

    def values(name: str) -> tuple[str, ...]:
        text = environ.get(f"PIP_{name.upper().replace('-', '_')}", settings.get(name, ""))
        return tuple(dict.fromkeys(text.split()))

    default, extra = _public_last(next(iter(values("index-url")), None), values("extra-index-url"))
    return Indexes(
        default=default,
        extra=extra,
        find_links=values("find-links"),
        insecure_hosts=values("trusted-host"),
        no_index=values("no-index") in (("1",), ("true",), ("yes",), ("on",)),
        keyring=next(iter(values("keyring-provider")), None) in ("import", "subprocess"),
    )


def _public_last(default: str | None, extra: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return the default index and the others, with public ones last."""
    given = sorted((*extra, *([default] if default else ())), key=is_public)
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


def _pip_config(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the settings in pip's configuration files; later files and the section [install] take precedence."""
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == "/dev/null":
        return {}
    settings: dict[str, str] = {}
    for file in _pip_files(environ, home):
        if not os.access(file, os.R_OK):
            continue
        from configparser import Error, RawConfigParser  # loaded only if there is such a file

        parser = RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (Error, UnicodeDecodeError) as error:
            raise ConfigError(f"pip's configuration file {file} cannot be read: {error}.") from None
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    return settings


def settings_files(environ: Mapping[str, str], home: Path, folder: Path) -> list[Path]:
    """Return all files that may hold settings for package sources, whether they exist or not."""
    return [*_pip_files(environ, home), *_uv_files(environ, home), *_projects(folder)]


def _pip_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*_SYSTEM_FILES, home / ".pip/pip.conf", config_home / "pip/pip.conf"]
    if sys.platform == "darwin":
        files.append(home / "Library/Application Support/pip/pip.conf")
    files.append(Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf")
    if chosen := environ.get("PIP_CONFIG_FILE", ""):
        files.append(Path(chosen))
    return files


def _uv_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    return [_UV_SYSTEM, Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv/uv.toml"]


def _projects(folder: Path) -> list[Path]:
    return [each / "pyproject.toml" for each in (folder, *folder.parents)]


def _uv_indexes(environ: Mapping[str, str], home: Path) -> Indexes:
    """Return the indexes in uv's variables and configuration files; variables take precedence."""
    settings = _uv_config(environ, home)
    listed = [entry for entry in settings.get("index", ()) if not entry.get("explicit")]
    default = next((_of_table(entry, environ) for entry in listed if entry.get("default")), settings.get("index-url"))
    extra = [_of_table(entry, environ) for entry in listed if not entry.get("default")]
    extra += settings.get("extra-index-url", ())
    named = [_of_word(entry, environ) for entry in _words(environ, "UV_INDEX")]
    chosen = next((_of_word(entry, environ) for entry in _words(environ, "UV_DEFAULT_INDEX")), None)
    links = [link for entry in _words(environ, "UV_FIND_LINKS") for link in entry.split(",")]
    return Indexes(
        default=chosen or environ.get("UV_INDEX_URL") or default,
        extra=tuple(dict.fromkeys([*named, *_words(environ, "UV_EXTRA_INDEX_URL"), *extra])),
        find_links=tuple(dict.fromkeys([*links, *settings.get("find-links", ())])),
        insecure_hosts=(*_words(environ, "UV_INSECURE_HOST"), *settings.get("allow-insecure-host", ())),
        no_index=bool(settings.get("no-index")) or environ.get("UV_NO_INDEX", "") in ("1", "true"),
        strategy=environ.get("UV_INDEX_STRATEGY") or settings.get("index-strategy"),
        keyring=(environ.get("UV_KEYRING_PROVIDER") or settings.get("keyring-provider")) == "subprocess",
    )


def _uv_config(environ: Mapping[str, str], home: Path) -> dict[str, Any]:
    if environ.get("UV_NO_CONFIG", "") in ("1", "true"):
        return {}
    if chosen := environ.get("UV_CONFIG_FILE"):
        return _flat(_toml(Path(chosen)))
    settings: dict[str, Any] = {}
    for file in _uv_files(environ, home):
        if file.is_file():
            settings.update(_flat(_toml(file)))
    return settings


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Merge the `[pip]` settings, which apply to `uv pip` as used by builds, over the general ones."""
    return {**settings, **settings.get("pip", {})}


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error}.") from None


def _words(environ: Mapping[str, str], name: str) -> list[str]:
    return environ.get(name, "").split()


def _of_word(entry: str, environ: Mapping[str, str]) -> str:
    """Return the index in a word of a variable, where uv allows a name in front: `name=url`."""
    name, equals, url = entry.partition("=")
    return _with_login(name, url, environ) if equals and "://" not in name else entry


def _of_table(entry: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    return _with_login(str(entry.get("name", "")), str(entry["url"]), environ)


def _with_login(name: str, url: str, environ: Mapping[str, str]) -> str:
    """Add the user and password that uv's variables have for an index name."""
    variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
    login = [environ.get(f"{variable}_{part}", "") for part in ("USERNAME", "PASSWORD")]
    parts = urlsplit(url)
    if not name or not any(login) or not parts.hostname:
        return url
    words = ":".join(quote(word, safe="") for word in login)
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
    user, place = unquote(parts.username), parts.netloc.rpartition("@")[2]
    for service in (parts._replace(netloc=place).geturl(), place):
        if password := _ask(service, user):
            login = f"{parts.username}:{quote(password, safe='')}"
            return parts._replace(netloc=f"{login}@{place}").geturl()
    return url


def _ask(service: str, user: str) -> str:
    """Return the keyring's password; "" if there is none."""
    command = shutil.which("keyring")
    words = [*([command] if command else [sys.executable, "-m", "keyring"]), "get", service, user]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = "it did not answer" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise ConfigError(f"The keyring was to be asked for the password of {user!r} at {service}: {reason}.") from None
    if "No module named" in done.stderr:
        raise ConfigError(
            f"This machine's settings of pip or uv take the password of {user!r} at {service} from a keyring, but "
            "there is no `keyring` command. Install it, or put the password into ~/.netrc."
        )
    return done.stdout.rstrip("\n") if done.returncode == 0 else ""
