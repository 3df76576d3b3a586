"""Requirement and constraint files in pip's format, as written by pip-tools, Poetry and uv.

Only lines are read here; uv judges what they require.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from skyward.builder.packages.local import entry_for, located
from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.image import local_path

_OPTION = re.compile(r"(--[a-z-]+|-[a-z])[=\s]*(.*)")
_LONG = {"-r": "--requirement", "-e": "--editable", "-c": "--constraint", "-i": "--index-url", "-f": "--find-links"}
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_COMMENT = re.compile(r"(^|[ \t])#.*$", re.MULTILINE)
# locks that only their own tools read, and how to export one that other tools read
_EXPORTS = {
    "poetry.lock": "poetry export -f requirements.txt -o requirements.txt",
    "pdm.lock": "pdm export -f pylock -o pylock.toml",
    "Pipfile.lock": "pipenv requirements --hash > requirements.txt",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The content of one line of such a file.

    Attributes:
        kind: "requirement", "constraint", "require-hashes", "index-url", "extra-index-url" or "find-links".
        text: the requirement in normal form; for a package source its URL, or the path of a folder.
        where: name of the file, for messages.
        hashes: `sha256:...` of the files from which the requirement may be installed; empty for any.
    """

    kind: str
    text: str
    where: str
    hashes: tuple[str, ...] = ()


def no_lock(folder: Path) -> ConfigError:
    """Return the error for a project without a lock that can be read."""
    for name, export in _EXPORTS.items():
        if (folder / name).is_file():
            return ConfigError(
                f"Only its own tool reads {folder / name}. Run `{export}` in {folder}, and use that file."
            )
    return ConfigError(f"The project in {folder} has no lock (uv.lock or pylock.toml). Run `uv lock` in {folder}.")


def read_requirements(
    path: Path, name: str, root: Path, kind: str = "requirement", above: tuple[Path, ...] = ()
) -> Iterator[Line]:
    """Yield the lines of a file and of the files it includes.

    Args:
        path: path of the file.
        name: its name as given, for messages.
        root: base of the image's relative paths.
        kind: "requirement" or "constraint".
        above: the files that include it.

    Raises:
        ConfigError: it cannot be read, includes itself, or a line is not supported; the message names the file.
    """
    if path.name in _EXPORTS:
        raise no_lock(path.parent)
    if path in above:
        raise ConfigError(f"{path} includes itself.")
    try:
        text = _COMMENT.sub("", path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Image: {kind}s names {name!r}, but {path} cannot be read: {error}.") from None
    for line in filter(None, (" ".join(each.split()) for each in text.replace("\\\n", " ").splitlines())):
        found = _OPTION.fullmatch(line)
        option = _LONG.get(found[1], found[1]) if found else ""
        value = found[2].strip("\"'") if found else line
        if option in ("--requirement", "--constraint") and value and "://" not in value:
            inner = "constraint" if option == "--constraint" else kind
            yield from read_requirements(located(path.parent, value), value, root, inner, (*above, path))
            continue
        try:
            if option in ("--index-url", "--extra-index-url", "--find-links"):
                yield Line(kind=option.lstrip("-"), text=_source(value, path), where=name)
            elif option == "--require-hashes":
                yield Line(kind="require-hashes", text="", where=name)
            elif option in ("", "--editable") and value:
                yield _requirement(value, path, root, kind, option == "--editable", name)
            else:
                raise ConfigError(f"{fields.without_logins(line)} is not supported in an image's requirements file.")
        except ConfigError as error:
            raise ConfigError(f"{path}: {str(error).removeprefix('Image: ')}") from None


def _requirement(text: str, path: Path, root: Path, kind: str, is_editable: bool, where: str) -> Line:
    hashes = tuple(sorted(_HASH.findall(text)))
    text = _HASH.sub("", text).strip()
    if " --" in text or any(not re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes):
        raise ConfigError("a requirement of an image has no options but --hash=sha256:...")
    by_url = fields.file_path(text)
    text = by_url or text
    if is_editable and not re.match(r"(git|hg|svn|bzr)\+", text) and " @ " not in text and local_path(text) is None:
        text = f"./{text}"
    if (local := local_path(text)) is not None and (by_url or not local.startswith(("/", "~"))):
        inner = os.path.normpath(path.parent / local)
        # pip resolves paths in a file against the working directory, other tools against the file's folder
        chosen = inner if Path(inner).exists() else os.path.normpath(root / local)
        text = entry_for(Path(chosen), root) + text[len(local) :]
    return Line(kind=kind, text=fields.requirement(text), where=where, hashes=hashes)


def _source(value: str, path: Path) -> str:
    if "$" in value:
        raise ConfigError("index must be a URL without variables. Logins belong to this machine's settings of uv.")
    if "://" not in value or value.startswith("file:"):
        folder = unquote(urlsplit(value).path) if value.startswith("file:") else value
        return str(located(path.parent, folder))
    return fields.url("index", value).rstrip("/")
