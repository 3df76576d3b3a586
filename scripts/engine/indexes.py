"""Which package indexes this machine serves from elsewhere: the map that builds take from SKYWARD_INDEXES."""

import configparser
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from .console import SetupError

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_TORCH_CPU_WHEEL = "torch-*+cpu-*.whl"


def find_links(environ: Mapping[str, str], files: Iterable[Path]) -> list[Path]:
    """Folders that pip's and uv's settings name as places of wheels, those of variables first."""
    values = environ.get("PIP_FIND_LINKS", "").split() + environ.get("UV_FIND_LINKS", "").replace(",", " ").split()
    for path in files:
        values += _from_file(path)
    folders = (Path(value.removeprefix("file://")).expanduser() for value in values if "://" not in value[5:])
    return [folder for folder in dict.fromkeys(folders) if folder.is_absolute() and folder.is_dir()]


def _from_file(path: Path) -> list[str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return []
    options = (value for section in parser.sections() for key, value in parser.items(section) if _is_find_links(key))
    return [word for value in options for word in value.split()]


def _is_find_links(key: str) -> bool:
    return key.replace("_", "-") == "find-links"


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """The configuration files that pip reads, as its documentation lists them."""
    if environ.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(environ.get("HOME", "/root"))
    config_home = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = [Path(environ["PIP_CONFIG_FILE"])] if environ.get("PIP_CONFIG_FILE") else []
    system = [Path(folder) / "pip" / "pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    site = Path(environ.get("VIRTUAL_ENV", sys.prefix)) / "pip.conf"
    return [*named, site, config_home / "pip" / "pip.conf", home / ".pip" / "pip.conf", Path("/etc/pip.conf"), *system]


def index_map(environ: Mapping[str, str], folders: Iterable[Path]) -> dict[str, str]:
    """The map of index address to mirror or folder: what the user set, plus what the machine has."""
    found: dict[str, str] = {}
    for folder in folders:
        if any(folder.glob(_TORCH_CPU_WHEEL)):
            found.setdefault(TORCH_CPU_INDEX, str(folder))
    return {**found, **_given(environ.get("SKYWARD_INDEXES", ""))}


def _given(text: str) -> dict[str, str]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise SetupError(
            f"SKYWARD_INDEXES is {text!r}, which is no JSON object of index address to mirror or folder, such as "
            '{"https://download.pytorch.org/whl/cpu": "/srv/wheels"}. Correct or unset it.'
        )
    return given
