"""Explanations of a build: changed inputs since the last build, the layers they invalidate, and sizes of layers.

The inputs of a build are kept in the user's cache under a name, such as the file an image is declared in. They contain
neither secrets nor values from this machine's settings. Long inputs are kept completely, so that they can be compared.
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
    """The cached inputs and layers of a build.

    Attributes:
        tag: tag of the image.
        inputs: the inputs of its content, as canonical JSON by name.
        layers: the key of every layer, in order.
    """

    tag: str
    inputs: Mapping[str, str]
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One input that differs.

    Attributes:
        input: its name: a field of the image, "base", "runner" (skyward's own version), "platform" and so on.
        before: what was removed; empty if something was only added.
        after: what was added; empty if something was only removed.
    """

    input: str
    before: str
    after: str

    def __str__(self) -> str:
        """Format the change as a line for users."""
        parts = [f"- {self.before}" if self.before else "", f"+ {self.after}" if self.after else ""]
        return f"{self.input}: {' '.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The changes and layers of the next build.

    Attributes:
        changes: inputs that differ from the last build's.
        reused: layers with files that the last build has already made.
        rebuilt: layers to be made again: the first because of a change, the others because they are above it.
    """

    changes: tuple[Change, ...] = ()
    reused: tuple[Layer, ...] = ()
    rebuilt: tuple[Layer, ...] = ()


def remember(name: str, plan: Plan) -> None:
    """Store the inputs of a build; to be called once the image exists."""
    write(_file(name), json.dumps(asdict(memory_of(plan)), indent=1))


def recall(name: str) -> Memory | None:
    """Return the memory of the last build of that name; None if there was none here."""
    try:
        kept = json.loads(read(_file(name)) or "")
        return Memory(tag=kept["tag"], inputs=kept["inputs"], layers=tuple(kept["layers"]))
    except (ValueError, KeyError, TypeError):  # missing, or of a version with another format
        return None


def memory_of(plan: Plan) -> Memory:
    """Return the memory of a build of this plan."""
    return Memory(tag=plan.tag, inputs=dict(plan.inputs), layers=tuple(key for _, key in _keys(plan)))


def explain(plan: Plan, last: Memory | None) -> Explanation:
    """Compare a plan with the memory of the last build.

    Args:
        plan: the planned build.
        last: the result of `recall`; with None, all layers are rebuilt.
    """
    made, keys = set(last.layers) if last else set(), list(_keys(plan))
    return Explanation(
        changes=tuple(_changes(dict(plan.inputs), last.inputs)) if last else (),
        reused=tuple(layer for layer, key in keys if key in made),
        rebuilt=tuple(layer for layer, key in keys if key not in made),
    )


def _changes(now: Mapping[str, str], last: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*now, *last}):
        if now.get(name) != last.get(name):
            before, after = _difference(last.get(name), now.get(name))
            yield Change(input=name, before=before, after=after)


def _difference(before: str | None, after: str | None) -> tuple[str, str]:
    """Return the differences of two values as text; both values completely if only the order differs."""
    old, new = _items(before), _items(after)
    gone, added = [each for each in old if each not in new], [each for each in new if each not in old]
    if not gone and not added:
        gone, added = old, new
    return ", ".join(map(_shown, gone)), ", ".join(map(_shown, added))


def _items(text: str | None) -> list[Any]:
    """Return the parts of a value for comparison."""
    value = json.loads(text) if text is not None else []
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


def layer_sizes(plan: Plan, history: Sequence[tuple[str, int]]) -> Iterator[tuple[Layer, int]]:
    """Yield the layers of the image with the bytes each has added; the base with its total size.

    Args:
        plan: the plan that was built.
        history: the image's instructions as reported by the engine, first to last, with their bytes.
    """
    inside = _stages(plan)
    layers = [layer for layer in plan.layers if layer.stage in inside and not layer.text.startswith("FROM ")]
    own, before = list(history[-len(layers) :]), history[: -len(layers)]
    if [_word(layer.text) for layer in layers] != [_word(made) for made, _ in own]:
        return  # reported in another form: no sizes are better than wrong ones
    base = next(layer for layer in plan.layers if layer.text.startswith("FROM ") and layer.stage == inside[0])
    yield base, sum(size for _, size in before)
    for layer, (_, size) in zip(layers, own, strict=True):
        yield layer, size


def _stages(plan: Plan) -> list[str]:
    """Return the stages that the last one is based on, the first one first; the others are discarded."""
    parents = {layer.stage: layer.text.split()[1] for layer in plan.layers if layer.text.startswith("FROM ")}
    chain = [plan.layers[-1].stage]
    while parents.get(chain[-1]) in parents:
        chain.append(parents[chain[-1]])
    return chain[::-1]


def _word(text: str) -> str:
    """Return the instruction at the beginning of a line from a Dockerfile or from an engine's history."""
    return text.split(maxsplit=1)[0] if text.strip() else ""
