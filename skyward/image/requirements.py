"""The Python requirements of an image in the form uv reads: each scoped package pinned to its one index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skyward.image.lock import scopes
from skyward.model.image import Image, local_path, requirement_name

PROJECT = "skyward-image-requirements"


def requirements_file(
    image: Image,
    *,
    python: str,
    mirrors: Mapping[str, str] | None = None,
    known: Mapping[str, str] | None = None,
) -> str:
    """A `pyproject.toml` that lists the image's requirements.

    An index is `explicit`: uv takes from it the packages whose source it is, and those from nowhere else. uv heeds
    sources for direct requirements only, so a scoped package that the image does not list has an extra of its own,
    asked for when the resolution turns out to need it.

    Args:
        image: what to install; its local packages have their needs beside them and are left out.
        python: minor version it is for.
        mirrors: other addresses to use for indexes, by the URL in the image.
        known: what takes the place of a requirement: a file for a package of which all is known.
    """
    import tomli_w  # where nothing is to be locked, it is not loaded

    names = {index.url: f"scoped-{number}" for number, index in enumerate(image.pip_indexes, start=1)}
    project: dict[str, Any] = {
        "name": PROJECT,
        "version": "0",
        "requires-python": f">={python}",
        "dependencies": [(known or {}).get(entry, entry) for entry in image.pip if local_path(entry) is None],
    }
    if extras := unlisted(image):
        project["optional-dependencies"] = {name: [name] for name in extras}
    indexes = [{"name": name, "url": (mirrors or {}).get(url, url), "explicit": True} for url, name in names.items()]
    elsewhere = {requirement_name(entry) for entry in known or {}}
    sources = {name: {"index": names[url]} for name, url in scopes(image).items() if name not in elsewhere}
    return tomli_w.dumps({"project": project, "tool": {"uv": {"index": indexes, "sources": sources}}})


def unlisted(image: Image) -> tuple[str, ...]:
    """Scoped packages that the image does not list itself; they may still come as somebody's dependency."""
    listed = {requirement_name(entry) for entry in image.pip}
    return tuple(sorted(name for index in image.pip_indexes for name in index.packages if name not in listed))
