"""Explanations of a build: which inputs differ from the last build's, which layers that costs, how large layers are.

The inputs of a build are kept in the user's cache under a name, such as the file an image is declared in. They hold
neither secrets nor values from this machine's settings. Long inputs are kept whole, so that they can be compared.
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
    """The inputs and layers of a build, as they are cached.

    Attributes:
        tag: of the image.
        inputs: what decided its content, as canonical JSON by name.
        layers: the key of every layer, in order.
    """

    tag: str
    inputs: Mapping[str, str]
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One input that differs.

    Attributes:
        input: its name: a field of the image, "base", "runner" (skyward's own version), "platform" and the like.
        before: what is there no more; empty where something was only added.
        after: what is new; empty where something was only taken away.
    """

    input: str
    before: str
    after: str

    def __str__(self) -> str:
        """As a line for people."""
        parts = [f"- {self.before}" if self.before else "", f"+ {self.after}" if self.after else ""]
        return f"{self.input}: {' '.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The changes and layers of a build to come.

    Attributes:
        changes: inputs that differ from the last build's.
        reused: the layers with files in them that the last build made already.
        rebuilt: those that are made anew: the first by a change, the others because they stand on it.
    """

    changes: tuple[Change, ...] = ()
    reused: tuple[Layer, ...] = ()
    rebuilt: tuple[Layer, ...] = ()


def remember(name: str, plan: Plan) -> None:
    """Keep what a build was made of. Call it once the image is there."""
    write(_file(name), json.dumps(asdict(memory_of(plan)), indent=1))


def recall(name: str) -> Memory | None:
    """The memory of the last build of that name; None if there was none here."""
    try:
        kept = json.loads(read(_file(name)) or "")
        return Memory(tag=kept["tag"], inputs=kept["inputs"], layers=tuple(kept["layers"]))
    except (ValueError, KeyError, TypeError):  # none, or of a version that kept something else
        return None


def memory_of(plan: Plan) -> Memory:
    """The memory of a build of this plan."""
    return Memory(tag=plan.tag, inputs=dict(plan.inputs), layers=tuple(key for _, key in _keys(plan)))


def explain(plan: Plan, last: Memory | None) -> Explanation:
    """Compare a plan with the memory of the last build.

    Args:
        plan: what would be built.
        last: what `recall` gives. None: everything is made anew.
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
    """The differences of two values as text; both whole where only the order differs."""
    old, new = _items(before), _items(after)
    gone, added = [each for each in old if each not in new], [each for each in new if each not in old]
    if not gone and not added:
        gone, added = old, new
    return ", ".join(map(_shown, gone)), ", ".join(map(_shown, added))


def _items(text: str | None) -> list[Any]:
    """The parts of a value, to be compared one by one."""
    value = json.loads(text) if text is not None else []
    if isinstance(value, dict):
        return [f"{key}={part}" for key, part in value.items()]
    return value if isinstance(value, list) else [value]


def _shown(part: Any) -> str:
    """A part in few words: a locked package without its hashes, a digest by its beginning."""
    text = part if isinstance(part, str) else json.dumps(part)
    text = " ".join(text.partition(" --hash=")[0].split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(plan: Plan) -> Iterator[tuple[Layer, str]]:
    """The layers that hold files, each with a key that changes when the builder would make it anew."""
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
    """The layers that are in the image, each with the bytes it added; the base with all of what it brings.

    Args:
        plan: what was built.
        history: the instructions of the image as the engine tells them, the first one first, with their bytes.
    """
    inside = _stages(plan)
    layers = [layer for layer in plan.layers if layer.stage in inside and not layer.text.startswith("FROM ")]
    own, before = list(history[-len(layers) :]), history[: -len(layers)]
    if [_word(layer.text) for layer in layers] != [_word(made) for made, _ in own]:
        return  # told in some other way: better no figures than wrong ones
    base = next(layer for layer in plan.layers if layer.text.startswith("FROM ") and layer.stage == inside[0])
    yield base, sum(size for _, size in before)
    for layer, (_, size) in zip(layers, own, strict=True):
        yield layer, size


def _stages(plan: Plan) -> list[str]:
    """The stages that the last one is made of, the first one first: the others are thrown away."""
    parents = {layer.stage: layer.text.split()[1] for layer in plan.layers if layer.text.startswith("FROM ")}
    chain = [plan.layers[-1].stage]
    while parents.get(chain[-1]) in parents:
        chain.append(parents[chain[-1]])
    return chain[::-1]


def _word(text: str) -> str:
    """The instruction that a line of a Dockerfile, or of an engine's account of it, begins with."""
    return text.split(maxsplit=1)[0] if text.strip() else ""
