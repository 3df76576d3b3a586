"""SHA-256 of package files on this machine: each is read once, and again when it has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from skyward.build.cache import cache_path, read, write


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file. It is read again only after its time of change, size or place have changed.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        kept = _folder() / _key(path, os.fstat(file.fileno()))
        known = read(kept) or ""
        if len(known) == 64:
            return known
        found = hashlib.file_digest(file, "sha256").hexdigest()
    write(kept, found)
    return found


def _folder() -> Path:
    return cache_path("hashes")


def _key(path: Path, facts: os.stat_result) -> str:
    text = f"{path.resolve()}\n{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
