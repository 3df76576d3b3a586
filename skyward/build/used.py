"""When images were last used by this user: one empty file per tag, whose time of change is that moment."""

from __future__ import annotations

from pathlib import Path

from skyward.build.cache import cache_path, remove, write


def note_use(tag: str) -> None:
    """Remember that an image is used now."""
    write(file_of_use(tag), "")


def last_use(tag: str) -> float | None:
    """When an image was last used, in seconds since the epoch; None if that is not known."""
    try:
        return file_of_use(tag).stat().st_mtime
    except OSError:  # none, or a cache that cannot be read, which only this figure is taken from
        return None


def forget_use(tag: str) -> None:
    """Drop what is known of an image that is gone."""
    remove(file_of_use(tag))


def file_of_use(tag: str) -> Path:
    """The file that remembers when an image was used."""
    # the tag is the identity: in whatever repository, it names the same image
    return cache_path("used", tag.rpartition(":")[2])
