"""Explanations of a build: changed inputs since the last build, and the layers they invalidate.

The inputs of a build are kept in the user's cache under a name, such as the file an image is declared in. They contain
neither secrets nor values from this machine's settings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skyward.builder.folders import cache_path, read, write
from skyward.image import Layer, Plan


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
    """The changes of the next build, the layers that the last one has already made, and those to be made again."""

    changes: tuple[Change, ...]
    reused: tuple[Layer, ...]
    rebuilt: tuple[Layer, ...]


def remember(name: str, plan: Plan) -> None:
    """Store the inputs of a build; to be called once the image exists."""
    write(_file(name), json.dumps(asdict(memory_of(plan))))


def recall(name: str) -> Memory | None:
    """Return the memory of the last build of that name; None if there was none here."""
    try:
        return Memory(**json.loads(read(_file(name)) or ""))
    except (ValueError, TypeError):  # missing, or of a version with another format
        return None


def memory_of(plan: Plan) -> Memory:
    """Return the memory of a build of this plan."""
    return Memory(tag=plan.tag, inputs=dict(plan.inputs), layers=[key for _, key in _keys(plan)])


def explain(plan: Plan, last: Memory | None) -> Explanation:
    """Compare a plan with the memory of the last build; with None, all layers are rebuilt."""
    now, before = dict(plan.inputs), last.inputs if last else dict(plan.inputs)
    names = sorted(name for name in {*now, *before} if now.get(name) != before.get(name))
    made, keys = set(last.layers) if last else set(), list(_keys(plan))
    return Explanation(
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


def _file(name: str) -> Path:
    return cache_path("builds", f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json")
