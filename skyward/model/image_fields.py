"""The fields of an `Image`: each value is checked and normalised.

Also the defaults of its target: the Python version of this program, and the platform of this machine.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from skyward.errors import ConfigError

PLATFORMS = {"x86_64": "linux/amd64", "amd64": "linux/amd64", "aarch64": "linux/arm64", "arm64": "linux/arm64"}
REFERENCE = re.compile(
    r"(?:(?:[a-zA-Z0-9][a-zA-Z0-9.-]*|\[[0-9a-fA-F:]+\])(?::\d+)?/)?"  # registry
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+|/[A-Za-z0-9.-]+)?", re.ASCII)
_MINOR = re.compile(r"3\.\d{1,2}", re.ASCII)
_OLDEST_MINOR = 11  # the code that runs on nodes requires it
_NEWEST_MINOR = 16  # the newest that uv installs; a newer client supports its own as well
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLATFORM = re.compile(r"linux/[a-z0-9]+(?:/v\d+)?", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_STAGE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_PATH_START = ("./", "../", "/", "~/")
_ARCHIVES = (".whl", ".tar.gz", ".zip")


def package_name(text: str) -> str:
    """Return a package's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def requirement_name(requirement: str) -> str:
    """Return the package that a requirement names, in normal form; "" for a local project, named only in its files."""
    path = local_path(requirement)
    if path is not None:
        return package_name(posixpath.basename(path).partition("-")[0]) if path.endswith(".whl") else ""
    found = _PACKAGE.match(requirement)
    return package_name(found.group().rstrip("-_.")) if found else ""


def local_path(requirement: str) -> str | None:
    """Return the path of a local wheel, archive or project, without extras; None for any other requirement."""
    path = re.sub(r"\[[^\[\]/]*\]$", "", requirement.strip())
    is_file = path.endswith(_ARCHIVES) and "@" not in path
    return path if is_file or path in (".", "..") or path.startswith(_PATH_START) else None


def is_dockerfile(base: str) -> bool:
    """Return whether a base is a path of a Dockerfile, not an image reference."""
    name = posixpath.basename(base)
    named = name == "Dockerfile" or name.endswith(".Dockerfile") or name.startswith("Dockerfile.")
    return base.startswith(_PATH_START) or (named and ":" not in name)


def without_logins(text: str) -> str:
    """Return a text in which user names, passwords and tokens in URLs are masked."""
    return re.sub(r"://[^/\s\"']*@", "://***@", text)


def require(holds: object, name: str, value: object, wanted: str) -> None:
    """Raise ConfigError, naming field, value and what is allowed, unless the condition holds."""
    if not holds:
        raise ConfigError(without_logins(f"Image: {name} must be {wanted}; found {value!r}."))


def path_texts(name: str, values: Any) -> tuple[str, ...]:
    """Return a caller's list of paths as strings."""
    listed = isinstance(values, (list, tuple, set, frozenset))
    return texts(name, [os.fspath(v) if isinstance(v, os.PathLike) else v for v in values] if listed else values)


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Return a caller's list of strings as a tuple; refuse a single string, which would be split into characters."""
    listed = isinstance(values, (list, tuple, set, frozenset))
    if isinstance(values, str):
        raise ConfigError(f"Image: {name} must be a list of strings; found {values!r}: write {name}=[{values!r}].")
    require(listed and all(isinstance(v, str) for v in values), name, values, "a list of strings")
    return tuple(values)


def reference(base: Any) -> str:
    """Check an image reference, and return it unchanged."""
    require(_matches(REFERENCE, base), "base", base, "an image reference such as 'python:3.12-slim', or a Dockerfile")
    return str(base)


def path(name: str, text: Any) -> str:
    """Return a path in canonical spelling: without spaces and slashes at its end, and without a leading `./`.

    The `./` stays before `~`, which would mean a home directory, and before a space.
    """
    require(isinstance(text, str) and text.strip() and text.isprintable(), name, text, "a path without line ends")
    given = str(text).strip()
    require("://" not in given, name, text, "a path of this machine and no URL; fetch the file and name it by its path")
    if given.startswith("~/"):  # not normalised as a whole: `~/..` is the home's parent
        return f"~/{_normal(given[2:])}"
    normal = _normal(given)
    return f"./{normal}" if normal.startswith(("~", " ")) else normal


def _normal(path: str) -> str:
    normal = posixpath.normpath(path)
    while (shorter := posixpath.normpath(normal.rstrip("/ ") or normal.strip()[:1])) != normal:
        normal = shorter
    return normal


def stage(name: str, text: Any) -> str | None:
    """Check the name of a build stage; None for the last one."""
    require(text is None or _matches(_STAGE, text), name, text, "the name of a stage of the Dockerfile")
    return None if text is None else str(text)


def python(version: Any) -> str:
    """Check a minor version of Python, or "auto"."""
    oldest, newest = _OLDEST_MINOR, max(_NEWEST_MINOR, sys.version_info.minor)
    meant = f"; write python={str(version)!r}" if isinstance(version, float) else ""
    if isinstance(version, str) and (minor := re.match(r"3\.\d{1,2}(?=\.\d+$)", version)):
        meant = f"; write python={minor[0]!r}, whose newest release it takes"
    known = _matches(_MINOR, version) and oldest <= int(version.partition(".")[2]) <= newest
    wanted = f"'auto' or a minor version such as '3.12'{meant or f', from 3.{oldest} to 3.{newest}'}"
    require(version == "auto" or known, "python", version, wanted)
    return str(version)


def platform(name: Any) -> str | None:
    """Check an OCI platform; None for that of the nodes."""
    meant = f"; write platform={PLATFORMS[name]!r}" if isinstance(name, str) and name in PLATFORMS else ""
    require(name is None or _matches(_PLATFORM, name), "platform", name, f"such as 'linux/amd64'{meant}")
    return None if name is None else str(name)


def local_minor() -> str:
    """Return the client's minor version of Python, such as "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def platform_of(architecture: str | None) -> str:
    """Return the OCI platform of an architecture's name; None means this machine's."""
    from platform import machine  # `platform` is a field's name here

    name = (architecture or machine()).lower()
    if name not in PLATFORMS:
        raise ConfigError(f"architecture must be 'x86_64' or 'arm64'; found {architecture!r}.")
    return PLATFORMS[name]


def bake(value: Any) -> bool:
    """Check a boolean."""
    require(isinstance(value, bool), "bake", value, "True or False")
    return bool(value)


def apt(name: str) -> str:
    """Check a Debian package."""
    accepted = "Debian package names, such as 'git' or 'git=1:2.39.5-0'"
    words = name.split()
    if len(words) > 1 and all(map(_APT.fullmatch, words)):
        accepted += f", each an entry of its own; write apt={words!r}"
    require(_APT.fullmatch(name), "apt", name, accepted)
    return name


def package(name: str, text: str) -> str:
    """Return the name of a Python package in its normal form."""
    require(_PACKAGE.fullmatch(text), name, text, "a package name without version")
    return package_name(text)


def group(name: str) -> str:
    """Return the name of a dependency group in its normal form (PEP 735)."""
    require(_PACKAGE.fullmatch(name), "groups", name, "names of dependency groups in pyproject.toml, such as 'train'")
    return package_name(name)


def extra(name: str) -> str:
    """Return the name of an extra in its normal form (PEP 685)."""
    require(_PACKAGE.fullmatch(name), "extras", name, "names of optional dependencies in pyproject.toml")
    return package_name(name)


def secret(name: str) -> str:
    """Check the name of a build secret."""
    require(_SECRET.fullmatch(name), "secrets", name, "names of letters, digits, '_', '-' and '.', such as 'HF_TOKEN'")
    own = name.lower().startswith("skyward")
    require(not own, "secrets", name, "names that do not begin with 'skyward', which are skyward's own")
    return name


def command(text: str) -> str:
    """Check a shell command, and return it unchanged."""
    require(text.strip() and _is_text(text), "run", text, "a shell command")
    return text


def env(name: str, variables: Any) -> dict[str, str]:
    """Check environment variables."""
    require(isinstance(variables, Mapping), name, variables, "a mapping of names to strings")
    for key, value in variables.items():
        require(_matches(_ENV_NAME, key), name, key, "names of letters, digits and '_'")
        meant = f", such as {str(value)!r}" if isinstance(value, int | float) else ""
        require(_is_text(value), f"{name}[{key!r}]", value, f"a string without NUL characters{meant}")
    return dict(variables)


def exclude_newer(value: Any) -> str | None:
    """Return a time in UTC; a date means the end of that day."""
    wanted = "a date such as '2026-05-31' or a time with its zone such as '2026-05-31T12:00:00Z'"
    if value is None:
        return None
    require(isinstance(value, str), "exclude_newer", value, wanted)
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            moment = datetime.combine(date.fromisoformat(value) + timedelta(days=1), time(tzinfo=UTC))
        else:
            moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise ConfigError(f"Image: exclude_newer must be {wanted}; found {value!r}.") from None
    require(moment.tzinfo, "exclude_newer", value, wanted)
    return moment.astimezone(UTC).replace(microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ")


# a name, perhaps with its version: most images have no others, and `packaging` takes 10 ms to load
_PLAIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(==[0-9]+(?:\.[0-9]+)*)?")


_WORDS = re.compile(r"\s*(-r|--requirement|-c|--constraint)(?:\s*=\s*|\s+|(?<=-[rc])(?=\S))(.+)", re.DOTALL)
_EDITABLE = re.compile(r"\s*(?:-e|--editable)(?:\s*=\s*|\s+)")
_VCS = re.compile(r"(?:git|hg|svn|bzr)\+")
_FILE_URL = re.compile(r"(?:[A-Za-z0-9._-]+\s*(\[[^\]]*\])?\s*@\s*)?file:([^\s;#?$\[]+)(\[[^\]]*\])?(?:#(\S*))?")
_VARIABLE = re.compile(r"\$\{[A-Za-z0-9_]+\}")


def requirement_words(entries: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """Split entries of `pip` into requirements, requirements files ("-r FILE") and constraints files ("-c FILE")."""
    pip: list[str] = []
    files: dict[str, list[str]] = {"r": [], "c": []}
    for entry in entries:
        found = _WORDS.fullmatch(entry)
        (files[found[1].lstrip("-")[0]] if found else pip).append(found[2].strip().strip("\"'") if found else entry)
    return pip, files["r"], files["c"]


def requirement(text: str) -> str:
    """Return a requirement, or the path of a local wheel or project, in its canonical spelling.

    Images contain copies, so that "-e " before a path or a repository has no effect.
    """
    text = _EDITABLE.sub("", text, count=1)
    if found := _VARIABLE.search(text):
        raise ConfigError(
            f"Image: pip holds a variable, {found[0]!r}, which is not replaced by its value. Write the value; logins "
            "belong to this machine's settings of pip or uv."
        )
    text = file_path(text.strip()) or text
    if _VCS.match(text.strip()):
        text = _repository(text.strip())
    if text.lstrip().startswith("-"):
        raise ConfigError(
            f"Image: pip must be requirements, paths, '-r FILE' or '-c FILE'; found {without_logins(text)!r}. Give an "
            "index in pip_indexes, for the packages that come from it, or in a file of requirements."
        )
    located = local_path(text)
    if located is not None:
        return _local_requirement(text.strip(), located)
    plain = text.isprintable() and "\\" not in text  # in a marker it would begin an escape, which may be a line's end
    require(plain, "pip", text, "requirements without backslashes, line ends and control characters")
    if text.strip().endswith(".txt"):
        shown = without_logins(text.strip())
        raise ConfigError(
            f"Image: pip must be requirements such as 'numpy>=2'; for the file {shown!r} write requirements="
            f"[{shown!r}]."
        )
    if usual := _PLAIN.fullmatch(text.strip()):
        return package_name(usual[1]) + (usual[2] or "")
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ModuleNotFoundError:  # on a node, where a user's module may define an Image that is never compiled
        return text.strip()
    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        reason = _meant(text) or f" ({str(error).splitlines()[0].rstrip('.')})"
        raise ConfigError(
            "Image: pip must be requirements such as 'numpy>=2' or paths such as './lib'; found "
            f"{without_logins(text)!r}{without_logins(reason)}."
        ) from None
    if wanted.url:
        url("pip", wanted.url, schemes=("http", "https", "git+https", "git+ssh"))
    wanted.name = package_name(wanted.name)
    return str(wanted)


def file_path(text: str) -> str | None:
    """Return the path, with its extras, of a requirement that names a file or directory by URL; None for any other."""
    found = _FILE_URL.fullmatch(text)
    if found is None:
        return None
    located = unquote(urlsplit(f"file:{found[2]}").path)
    start = "" if located.startswith(_PATH_START) or located in (".", "..") else "./"
    named = re.search(r"\[[^\]]*\]", found[4] or "")  # file:./lib#egg=lib[extra]
    return f"{start}{located}{found[1] or found[3] or (named[0] if named else '')}"


def _meant(text: str) -> str:
    """Return a hint on what to write instead of an invalid requirement; "" if unknown."""
    words = text.split()
    if len(words) > 1 and all(map(_PLAIN.fullmatch, words)):
        return f": write one entry for each, pip={words!r}"
    if single := re.fullmatch(r"\s*([\w.-]+)\s*=\s*([\w.]+)\s*", text):
        return f": write '{single[1]}=={single[2]}'"
    if re.fullmatch(r"https?://(github|gitlab)\.com/[^/\s]+/[^/\s]+", text.strip()):
        return f": write 'NAME @ git+{text.strip()}', with the package's name"
    return ""


def _repository(text: str) -> str:
    """Convert pip's notation of a repository, `git+URL#egg=NAME`, to a requirement with a name."""
    address, _, fragment = text.partition("#")
    parts = dict(part.partition("=")[::2] for part in fragment.split("&") if part)
    name = parts.get("egg", "")
    example = f"{name or 'NAME'} @ {address}"
    require(name, "pip", text, f"repositories with the package's name, such as '{example}' or '{text}#egg=NAME'")
    folder = parts.get("subdirectory")
    return f"{name} @ {address}" + (f"#subdirectory={folder}" if folder else "")


def _local_requirement(text: str, located: str) -> str:
    extras = sorted({package("pip", name.strip()) for name in text[len(located) + 1 : -1].split(",") if name.strip()})
    normal = path("pip", located)
    if normal not in (".", "..") and not normal.startswith(_PATH_START):
        normal = f"./{normal}"
    if normal.endswith(".whl"):
        wheel = re.fullmatch(r"[^-]+-[^-]+(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl", posixpath.basename(normal))
        require(wheel, "pip", text, "wheels whose file name says what they are, as in 'name-1.0-py3-none-any.whl'")
    return normal + (f"[{','.join(extras)}]" if extras else "")


def url(name: str, text: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """Check a URL, which must not contain credentials."""
    clean = str(text).isprintable() and not re.search(r"[\s\"'\\]", str(text))
    require(clean, name, text, "a URL without spaces, quotes or control characters")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ConfigError(f"Image: {name} must be a URL; found {without_logins(text)!r} ({error}).") from None
    if parts.password or (parts.username and not parts.scheme.endswith("ssh")):
        shown = text.replace(parts.netloc, f"***@{parts.netloc.rpartition('@')[2]}")
        raise ConfigError(
            f"Image: {name} holds a user name or password: {shown!r}. Credentials would end up in the image; give the "
            "URL without them and put them into this machine's settings of pip or uv, or map it in SKYWARD_INDEXES."
        )
    kind = "://, ".join(schemes) + "://"
    # without a scheme, the part before the host may still contain credentials
    shown = text if "://" in text else text.rpartition("@")[2]
    require(parts.scheme in schemes and parts.hostname, name, shown, f"a URL that starts with {kind}")
    return text


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


def _is_text(value: object) -> bool:
    """Return whether a value can be encoded in UTF-8 and passed to a process."""
    return isinstance(value, str) and not re.search("[\0\ud800-\udfff]", value)
