"""The Python requirements of an image in the form uv reads: each scoped package pinned to its one index."""

from __future__ import annotations

import json
from collections.abc import Mapping

from skyward.model.image import Image, local_path, requirement_name

PROJECT = "skyward-image-requirements"


def requirements_file(image: Image, *, python: str, mirrors: Mapping[str, str] | None = None) -> str:
    """A `pyproject.toml` that lists the image's requirements.

    An index is `explicit`: uv takes from it the packages whose source it is, and those from nowhere else. uv heeds
    sources for direct requirements only, so a scoped package that the image does not list has an extra of its own,
    asked for when the resolution turns out to need it.

    Args:
        image: what to install; its local packages have their needs beside them and are left out.
        python: minor version it is for.
        mirrors: other addresses to use for indexes, by the URL in the image.
    """
    lines = ["[project]", f'name = "{PROJECT}"', 'version = "0"', f'requires-python = ">={python}"']
    lines += ["dependencies = [", *(f"    {_text(entry)}," for entry in image.pip if local_path(entry) is None), "]"]
    extras = unlisted(image)
    if extras:
        lines += ["", "[project.optional-dependencies]", *(f"{name} = [{_text(name)}]" for name in extras)]
    for number, index in enumerate(image.pip_indexes, start=1):
        url = (mirrors or {}).get(index.url, index.url)
        lines += ["", "[[tool.uv.index]]", f'name = "scoped-{number}"', f"url = {_text(url)}", "explicit = true"]
    sources = [
        f'{name} = {{ index = "scoped-{number}" }}'
        for number, index in enumerate(image.pip_indexes, start=1)
        for name in index.packages
    ]
    if sources:
        lines += ["", "[tool.uv.sources]", *sources]
    return "\n".join(lines) + "\n"


def unlisted(image: Image) -> tuple[str, ...]:
    """Scoped packages that the image does not list itself; they may still come as somebody's dependency."""
    listed = {requirement_name(entry) for entry in image.pip}
    return tuple(sorted(name for index in image.pip_indexes for name in index.packages if name not in listed))


def _text(value: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(value)
