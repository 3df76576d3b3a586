"""Origins of an image's entries: the user's own field, or the plugin that added one. Errors name them."""

from __future__ import annotations

from dataclasses import replace

from skyward.model.image import Image


def with_origin(before: Image, after: Image, name: str) -> Image:
    """`after`, with every entry that `before` does not have attributed to `name`, such as "plugin torch"."""
    known = {**dict(after.origins), **dict(before.origins)}
    old = set(_entries(before))
    known.update({key: name for key in _entries(after) if key not in old})
    return replace(after, origins=tuple(sorted(known.items())))


def origin_of(image: Image, field: str, entry: str) -> str:
    """Who asked for one entry of a field, in words for an error."""
    return dict(image.origins).get(f"{field}:{entry}") or f"your {field}=[{entry!r}]"


def origins_of(image: Image, field: str, entries: tuple[str, ...]) -> str:
    """Who asked for these entries of a field: the user's in one list, each plugin's in one."""
    added = dict(image.origins)
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(added.get(f"{field}:{entry}", ""), []).append(entry)
    return ", ".join(f"{name or 'your'} {field}={listed!r}" for name, listed in sorted(groups.items()))


def _entries(image: Image) -> list[str]:
    keys = [f"base:{image.base}"] if image.base else []
    keys += [f"apt:{entry}" for entry in image.apt]
    keys += [f"pip:{entry}" for entry in image.pip]
    keys += [f"run:{entry}" for entry in image.run]
    keys += [f"env:{entry}" for entry in image.env]
    return keys + [f"pip_indexes:{index.url}" for index in image.pip_indexes]
