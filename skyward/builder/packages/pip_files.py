"""A reader of requirement and constraint files in pip's format, as written by pip-tools, Poetry and uv."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from skyward.builder.packages.metadata import entry_for, located
from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.image import local_path

_OPTION = re.compile(r"(--?[A-Za-z][A-Za-z-]*)(?:[=\s]\s*(.*))?", re.DOTALL)
_SHORT = {"-r": "--requirement", "-e": "--editable", "-c": "--constraint", "-i": "--index-url", "-f": "--find-links"}
_SOURCES = ("--index-url", "--extra-index-url", "--find-links")
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
# locks that only their own tools read, and how to export one that other tools read
EXPORTS = {
    "poetry.lock": "poetry export -f requirements.txt -o requirements.txt",
    "pdm.lock": "pdm export -f pylock -o pylock.toml",
    "Pipfile.lock": "pipenv requirements --hash > requirements.txt",
}
# other tools' requirement files by name, and the remedy
_OTHER_FORMS = (
    (r"uv\.lock", "Name the pyproject.toml beside it, which is installed as the lock says."),
    (r"p(yproject|ylock(\.[^.]+)?)\.toml", "Name it in requirements=, not in another file or in constraints=."),
    (
        r"pixi\.(lock|toml)|.*\.(ya?ml|json)",
        "Packages of conda are not installed in images: name those of PyPI in pip= or in a file of requirements, and "
        "libraries of the system in apt=.",
    ),
    (r"setup\.(py|cfg)", "Write what it needs into [project] dependencies of a pyproject.toml, and name that."),
    (r"Pipfile|.*\.(toml|py|cfg)", "Write one requirement on a line, as in requirements.txt."),
)
_REMEDIES = {
    "--no-binary": "Which packages are built from source is not for an image to choose; name a version without wheels, "
    "or make a wheel of your own and name its path.",
    "--only-binary": "Remove the line: wheels are taken wherever there is one that fits.",
    "--prefer-binary": "Remove the line: wheels are taken wherever there is one that fits.",
    "--pre": "Name the pre-release in the requirement, as in 'numpy>=2.0rc1', which allows it.",
    "--no-index": "Say it in this machine's settings of pip or uv (PIP_NO_INDEX=1).",
    "--trusted-host": "Say it in this machine's settings of pip or uv (PIP_TRUSTED_HOST).",
    "--config-settings": "Say it in the image's build_env, if the build reads variables.",
    "--global-option": "Say it in the image's build_env, if the build reads variables.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The content of one line of such a file.

    Attributes:
        kind: "requirement", "constraint", "require-hashes", or the kind of a package source: "index-url",
            "extra-index-url", "find-links".
        text: the requirement in normal form; for a source its URL, or the path of a folder.
        where: file and line, for messages.
        hashes: `sha256:...` of the files from which the requirement may be installed; empty for any.
    """

    kind: str
    text: str
    where: str
    hashes: tuple[str, ...] = ()


def read_pip_file(path: Path, name: str, root: Path, *, constraints: bool = False) -> Iterator[Line]:
    """Yield the lines of a file and of the files it includes.

    Args:
        path: path of the file.
        name: its name as given, for messages.
        root: base of the image's relative paths.
        constraints: whether it is a file of constraints.

    Raises:
        ConfigError: it cannot be read, or a line is not supported for images; the message names file and line.
    """
    yield from _lines(path, name, root, "constraint" if constraints else "requirement", ())


def _lines(path: Path, name: str, root: Path, kind: str, above: tuple[Path, ...]) -> Iterator[Line]:
    if path in above:
        raise ConfigError(f"{path} requires itself, by way of {above[-1]}.")
    if remedy := _remedy(path):
        raise ConfigError(f"Image: {kind}s names {name!r}, which is no file of requirements in pip's form. {remedy}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Image: {kind}s names {name!r}, but {path} cannot be read: {error}.") from None
    for number, line in _logical(text):
        place, where = f"{path}, line {number}", f"{name}, line {number}"
        option, value = _option(line) if line.startswith("-") else ("", line)
        if option in ("--requirement", "--constraint") and "://" in value:
            raise ConfigError(
                f"{place}: {option} takes files of this machine; fetch {fields.without_logins(value)} and name it "
                "by its path."
            )
        if option in ("--requirement", "--constraint") and value:
            inner = "constraint" if option == "--constraint" else kind
            yield from _lines(located(path.parent, value), value, root, inner, (*above, path))
        elif option in _SOURCES and value:
            yield Line(kind=option.lstrip("-"), text=_source(value, path, place), where=where)
        elif option == "--require-hashes":
            yield Line(kind="require-hashes", text="", where=where)
        elif option in ("", "--editable") and value:
            yield _requirement(value, path, root, kind, option == "--editable", place, where)
        else:
            raise ConfigError(
                f"{place}: {option} cannot be used here. "
                + _REMEDIES.get(option, "A requirement file of an image holds requirements, -r, -c and indexes only.")
            )


def _remedy(path: Path) -> str | None:
    """Return the remedy for a file of another tool; None for one in pip's format."""
    if export := EXPORTS.get(path.name):
        return f"Write it down in one that all tools read, `{export}` in {path.parent}, and name {export.split()[-1]}."
    return next((remedy for pattern, remedy in _OTHER_FORMS if re.fullmatch(pattern, path.name)), None)


def _requirement(text: str, path: Path, root: Path, kind: str, is_editable: bool, place: str, where: str) -> Line:
    hashes = tuple(sorted(_HASH.findall(text)))
    text = _HASH.sub("", text).strip()
    if found := re.search(r"\s(--[a-z][a-z-]*)", text):
        remedy = _REMEDIES.get(found[1], "A requirement of an image has --hash options only.")
        raise ConfigError(f"{place}: {found[1]} cannot be used here. {remedy}")
    if wrong := next((each for each in hashes if not re.fullmatch(r"sha256:[0-9a-f]{64}", each)), None):
        raise ConfigError(f"{place}: images are locked by SHA-256; found --hash={fields.without_logins(wrong)}.")
    by_url = fields.file_path(text)
    text = by_url or text
    if is_editable and not re.match(r"(git|hg|svn|bzr)\+", text) and " @ " not in text and local_path(text) is None:
        text = f"./{text}"
    if (local := local_path(text)) is not None and (by_url or not local.startswith(("/", "~"))):
        text = _relative(local, path.parent, root) + text[len(local) :]
    try:
        return Line(kind=kind, text=fields.requirement(text), where=where, hashes=hashes)
    except ConfigError as error:
        raise ConfigError(f"{place}: {str(error).removeprefix('Image: ')}") from None


def _relative(path: str, folder: Path, root: Path) -> str:
    """Convert a path in a file of that folder to one relative to the image's root."""
    inner = os.path.normpath(folder / path)
    # pip resolves paths in a file against the working directory, other tools against the file's folder
    chosen = inner if os.path.exists(inner) else os.path.normpath(root / path)  # noqa: PTH110
    return entry_for(Path(chosen), root)


def _source(value: str, path: Path, place: str) -> str:
    if "$" in value:
        shown = fields.without_logins(value)
        raise ConfigError(
            f"{place}: index must be a URL without variables; found {shown!r}. Logins belong to this machine's "
            "settings of pip or uv."
        )
    if "://" not in value or value.startswith("file:"):
        folder = unquote(urlsplit(value).path) if value.startswith("file:") else value
        return str(located(path.parent, folder))
    try:
        return fields.url("index", value).rstrip("/")
    except ConfigError as error:
        raise ConfigError(f"{place}: {str(error).removeprefix('Image: ')}") from None


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines joined with their continuations, without comments, each with its first line number."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        first = first if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        parts.append(re.sub(r"(^|\s)#.*$", "", line))
        if whole := " ".join("".join(parts).split()):
            yield first, whole
        parts = []


def _option(line: str) -> tuple[str, str]:
    joined = re.match(r"(-[a-z])(?=[^-\s])(.*)", line)
    found = _OPTION.match(line)
    option, value = (joined[1], joined[2]) if joined else (found[1], found[2] or "") if found else (line, "")
    return _SHORT.get(option, option), value.strip().lstrip("=").strip("\"'")
