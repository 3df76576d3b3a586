"""Explanations of a build: changed inputs since the last build, and the layers they invalidate.

The inputs of a build are kept in the user's cache under the tag of its image. They contain neither secrets nor values
from this machine's settings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from skyward.builder.folders import cache_path, newest, read, write
from skyward.builder.store import note_use, source_of
from skyward.image import Layer, Plan

_KEPT = 200  # builds


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A build: the tag of its image, the inputs of the content as canonical JSON, and the key of every layer."""

    tag: str
    inputs: Mapping[str, str]
    layers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One input that differs, such as a field of the image or "base": what was removed, and what was added."""

    input: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The changes since another build, by its tag, the layers that builds have already made, and those to be made."""

    last: str | None
    changes: tuple[Change, ...]
    reused: tuple[Layer, ...]
    rebuilt: tuple[Layer, ...]


def remember(plan: Plan, source: str = "") -> None:
    """Record what an image was built from, and that it is used now (see `note_use`); to be called once it exists."""
    note_use(plan.tag, source)
    folder = cache_path("builds")
    write(folder / f"{plan.tag.rpartition(':')[2]}.json", json.dumps(asdict(memory_of(plan))))
    for old in newest(folder, "*.json")[_KEPT:]:
        old.unlink(missing_ok=True)


def memories() -> list[Memory]:
    """Return the builds that are known here, the last one first."""
    found = []
    for path in newest(cache_path("builds"), "*.json"):
        with suppress(ValueError, TypeError):  # of a version with another format
            found.append(Memory(**json.loads(read(path) or "")))
    return found


def memory_of(plan: Plan) -> Memory:
    """Return the memory of a build of this plan."""
    return Memory(tag=plan.tag, inputs=dict(plan.inputs), layers=[key for _, key in _keys(plan)])


def explain(plan: Plan, known: Sequence[Memory], source: str = "") -> Explanation:
    """Compare a plan with the last build for the same source, or else with the one that has most of its layers.

    Args:
        plan: of the image.
        known: earlier builds, the last one first.
        source: file that declares the image.
    """
    keys, now = list(_keys(plan)), dict(plan.inputs)
    known = [each for each in known if each.inputs.get("platform") == now["platform"]]
    made = {key for each in known for key in each.layers}

    def likeness(each: Memory) -> tuple[bool, int]:
        is_same = bool(source) and source in (used_by := source_of(each.tag), used_by.rpartition(":")[0])
        return is_same, sum(key in each.layers for _, key in keys)

    last = max((each for each in known if any(likeness(each))), key=likeness, default=None)
    before = last.inputs if last else now
    names = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    return Explanation(
        last=last.tag if last else None,
        changes=tuple(_change(name, before.get(name), now.get(name)) for name in names),
        reused=tuple(layer for layer, key in keys if key in made),
        rebuilt=tuple(layer for layer, key in keys if key not in made),
    )


def _change(name: str, before: str | None, now: str | None) -> Change:
    """Return the differences of two values; both values completely if only the order differs."""
    old, new = _items(before), _items(now)
    gone, added = [each for each in old if each not in new], [each for each in new if each not in old]
    if not gone and not added:
        gone, added = old, new
    return Change(input=name, before=", ".join(map(_shown, gone)), after=", ".join(map(_shown, added)))


def _items(text: str | None) -> list[Any]:
    """Return the parts of a value for comparison."""
    value = json.loads(text or "[]")
    if isinstance(value, dict):
        return [f"{key}={part}" for key, part in value.items()]
    return value if isinstance(value, list) else [value]


def _shown(part: Any) -> str:
    """Shorten a part: a locked package without its hashes, a digest to its beginning."""
    text = part if isinstance(part, str) else json.dumps(part)
    text = " ".join(text.partition(" --hash=")[0].split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(plan: Plan) -> Iterator[tuple[Layer, str]]:
    """Yield the layers that contain files, each with a key that changes when the builder would rebuild it."""
    inputs = dict(plan.inputs)
    sources = {**dict(plan.files), **{each.folder: each.digest for each in plan.copied}, "runner": inputs["runner"]}
    key = hashlib.sha256(f"{inputs['base']} {inputs['platform']}".encode())
    for layer in plan.layers:
        if layer.stage not in ("python", "image") or layer.step is None or layer.text.startswith(("FROM ", "ADD ")):
            continue
        key.update(f"\n{layer.text}\n".encode())
        mounted = re.findall(r"source=([^,\s]+)", layer.text)
        for source, content in sorted(sources.items()):
            if any(source == each or source.startswith(f"{each}/") for each in mounted):
                key.update(content.encode())
        yield layer, key.hexdigest()
