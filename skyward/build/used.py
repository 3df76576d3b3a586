"""When images were last used by this user: one empty file per tag, whose time of change is that moment."""

from __future__ import annotations

from pathlib import Path


def note_use(tag: str) -> None:
    """Remember that an image is used now."""
    path = _file(tag)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def last_use(tag: str) -> float | None:
    """When an image was last used, in seconds since the epoch; None if that is not known."""
    try:
        return _file(tag).stat().st_mtime
    except FileNotFoundError:
        return None


def forget_use(tag: str) -> None:
    """Drop what is known of an image that is gone."""
    _file(tag).unlink(missing_ok=True)


def _file(tag: str) -> Path:
    from platformdirs import user_cache_path

    # the tag is the identity: in whatever repository, it names the same image
    return user_cache_path("skyward") / "used" / tag.rpartition(":")[2]
