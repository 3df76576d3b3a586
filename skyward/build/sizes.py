"""How large each layer of a built image is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skyward.image import Layer, Plan


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
