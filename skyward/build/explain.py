"""Why an image would be built: what differs from the last build of the same description, and which layers that costs.

The inputs of a build are kept in the user's cache under a name, such as the file an image is declared in. They hold
neither secrets nor values from this machine's settings; what may be long is kept as it is, so that it can be compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward.build.cache import cache_path, read, write
from skyward.image import Layer, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is kept of a build.

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
    """What a build would do.

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
    memory = memory_of(plan)
    text = json.dumps({"tag": memory.tag, "inputs": dict(memory.inputs), "layers": memory.layers}, indent=1)
    write(_file(name), text)


def recall(name: str) -> Memory | None:
    """What the last build of that name was made of; None if there was none here."""
    try:
        kept = json.loads(read(_file(name)) or "")
        return Memory(tag=kept["tag"], inputs=kept["inputs"], layers=tuple(kept["layers"]))
    except (ValueError, KeyError, TypeError):  # none, or of a version that kept something else
        return None


def memory_of(plan: Plan) -> Memory:
    """What would be kept of a build of this plan."""
    return Memory(tag=plan.tag, inputs=dict(plan.inputs), layers=tuple(key for _, key in _keys(plan)))


def explain(plan: Plan, last: Memory | None) -> Explanation:
    """What a build of this plan would do, as far as the last build's memory tells.

    Args:
        plan: what would be built.
        last: what `recall` gives. None: everything is made anew.
    """
    made = set(last.layers) if last else set()
    return Explanation(
        changes=tuple(_changes(dict(plan.inputs), last.inputs)) if last else (),
        reused=tuple(layer for layer, key in _keys(plan) if key in made),
        rebuilt=tuple(layer for layer, key in _keys(plan) if key not in made),
    )


def _changes(now: Mapping[str, str], last: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*now, *last}):
        if now.get(name) != last.get(name):
            before, after = _difference(last.get(name), now.get(name))
            yield Change(input=name, before=before, after=after)


def _difference(before: str | None, after: str | None) -> tuple[str, str]:
    """What two values do not share, in words; where only the order differs, both whole."""
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
