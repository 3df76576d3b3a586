"""The files of source packages that say what building them takes: out of archives of indexes, and repositories.

Archives are fetched with this machine's package settings, and compared with the lock's hash before they are read.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from zipfile import BadZipFile, ZipFile

from skyward.build.build_system import FILES
from skyward.errors import ImageError

_MOST_BYTES = 1 << 20  # of one of these files
_LIMITS_S = (10.0, 60.0)


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
        words = re.sub(r"://[^/@\s]+@", "://***@", done.stderr.strip())
        raise ImageError(f"The repository of {name!r} cannot be read to learn what building it takes: {words}")
    top = PurePosixPath(vcs.get("subdirectory", ""))
    shown = {file: git(*inside, "show", f"{commit}:{(top / file).as_posix()}") for file in FILES}
    return {file: done.stdout for file, done in shown.items() if done.returncode == 0}  # one that is not there: 128
