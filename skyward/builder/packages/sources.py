"""What source packages from indexes and repositories are built with, read from their `pyproject.toml`.

None of their code is run for this.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zipfile import BadZipFile, ZipFile

from skyward.builder.packages.local import build_requirements
from skyward.builder.packages.pylock import file_of
from skyward.errors import ImageError
from skyward.model.image_fields import without_logins

if TYPE_CHECKING:
    from packaging import pylock

_LIMITS_S = (10.0, 60.0)


def source_build(entry: pylock.Package, place: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the build requirements of a locked source package.

    Args:
        entry: the package, with `vcs`, `archive` or `sdist`.
        place: a folder for downloads.
        environment: the variables that point to the site's settings of package tools.

    Raises:
        ImageError: the source is unavailable or unreadable, or is not the one that was locked.
    """
    try:
        text = _of_commit(entry, place, environment) if entry.vcs else _of_archive(entry, place, environment)
        return build_requirements(tomllib.loads(text))
    except (tarfile.TarError, BadZipFile, OSError, EOFError, ValueError, AttributeError) as error:
        raise ImageError(f"The source package of {entry.name!r} cannot be read: {error}.") from error


def _of_archive(entry: pylock.Package, place: Path, environment: Mapping[str, str]) -> str:
    file = entry.archive or entry.sdist
    assert file is not None
    url = file.url or (place / str(file.path)).resolve().as_uri()
    archive = file_of(url) or _fetched(entry.name, url, place, environment)
    with archive.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != file.hashes.get("sha256"):
            raise ImageError(f"The source package of {entry.name!r} does not have the SHA-256 that its index names.")
    below = PurePosixPath(entry.archive.subdirectory or "") if entry.archive else PurePosixPath()
    wanted = below / "pyproject.toml"  # in the archive's only folder
    if archive.suffix == ".zip":
        with ZipFile(archive) as zipped:
            name = next((each for each in zipped.namelist() if _inside(each) == wanted), None)
            return zipped.read(name).decode() if name else ""
    with tarfile.open(archive) as tar:
        member = next((each for each in tar if _inside(each.name) == wanted and each.isfile()), None)
        opened = tar.extractfile(member) if member else None
        return opened.read().decode() if opened else ""


def _inside(path: str) -> PurePosixPath:
    return PurePosixPath(*PurePosixPath(path).parts[1:])


def _fetched(name: str, url: str, place: Path, environment: Mapping[str, str]) -> Path:
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
            f"The source package of {name!r} could not be fetched from {urlsplit(url).hostname} ({status}). Check "
            "network, proxy and the logins of package indexes."
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


def _of_commit(entry: pylock.Package, place: Path, environment: Mapping[str, str]) -> str:
    """Read the file from a repository, of which only that commit is fetched."""
    vcs, folder = entry.vcs, str(place / f"{entry.name}.git")
    assert vcs is not None

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        quiet = {**os.environ, **environment, "GIT_TERMINAL_PROMPT": "0"}
        return subprocess.run(
            ["git", *words], env=quiet, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    git("init", "--quiet", "--bare", folder)
    done = git("-C", folder, "fetch", "--quiet", "--depth=1", str(vcs.url or vcs.path), vcs.commit_id)
    if done.returncode:
        raise ImageError(f"The repository of {entry.name!r} cannot be read: {without_logins(done.stderr.strip())}")
    file = (PurePosixPath(vcs.subdirectory or "") / "pyproject.toml").as_posix()
    return git("-C", folder, "show", f"{vcs.commit_id}:{file}").stdout  # empty without the file
