"""Digests of files on this machine: of sets that go into an image, and, cached, of single package files."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from skyward.builder.cache import cache_path, drop_old, read, write
from skyward.errors import ConfigError

Files = tuple[tuple[str, str], ...]  # the path that a file gets, and where it is here


def digest_of(files: Files) -> str:
    """SHA-256 (hex) over paths, contents, and whether a file may be executed; links stand for where they lead.

    Raises:
        ConfigError: a file cannot be read.
    """
    whole = hashlib.sha256(b"skyward.files\n")
    for name, source in files:
        path = name.encode("utf-8", "surrogateescape")
        try:
            kind, content = _content(source)
        except OSError as error:
            raise ConfigError(f"{source} goes into the image, but cannot be read: {error.strerror}.") from None
        whole.update(b"%s %d %s %s\n" % (kind, len(path), path, content.encode()))
    return whole.hexdigest()


def _content(source: str) -> tuple[bytes, str]:
    """What kind of file it is, and the digest of its content."""
    path = Path(source)
    if path.is_symlink():
        return b"link", hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    if path.is_dir():
        return b"directory", ""
    with path.open("rb") as file:
        kind = b"program" if os.fstat(file.fileno()).st_mode & 0o111 else b"file"
        return kind, hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file. It is read again only after its time of change, size or place have changed.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        kept = cache_path("hashes", _key(path, os.fstat(file.fileno())))
        known = read(kept) or ""
        if len(known) == 64:
            return known
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if write(kept, found):
        _drop_old(kept.parent)
    return found


_drop_old = lru_cache(drop_old)  # once per process: there may be as many files as notes


def _key(path: Path, facts: os.stat_result) -> str:
    text = f"{path.resolve()}\n{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
