"""Which layer of an image is how large."""

from __future__ import annotations

from dataclasses import replace

from skyward.builder.explain import layer_sizes
from skyward.model.image import Image
from tests.unit.image.images import compiled

PLAN = compiled(Image(pip=["numpy"], apt=["git"], run=["one", "two"], env={"A": "b"}))
OWN = [layer for layer in PLAN.layers if layer.stage in ("python", "image") and not layer.text.startswith("FROM ")]
HISTORY = [(layer.text, 10 * number) for number, layer in enumerate(OWN, 1)]


def test_layers_follow_the_history() -> None:
    """The base gets what comes before ours; stages that are thrown away have no size."""
    sizes = layer_sizes(PLAN, [("bazel build ...", 5), ("CMD x", 0), ("COPY y", 7), *HISTORY])

    base, *others = list(sizes)

    assert (base[0].name, base[1]) == ("base", 12)
    assert others == [(layer, 10 * number) for number, layer in enumerate(OWN, 1)]
    assert not any(layer.stage == "uv" for layer, _ in others)


def test_a_history_of_another_kind_gives_no_figures() -> None:
    """Better none than wrong ones."""
    assert list(layer_sizes(PLAN, HISTORY[1:])) == []
    assert list(layer_sizes(PLAN, [*HISTORY[:-1], ("RUN what", 1)])) == []
    assert list(layer_sizes(PLAN, [])) == []


def test_a_plan_whose_stages_do_not_lead_to_its_last() -> None:
    """A plan cut down to one stage still has a base."""
    python = replace(PLAN, layers=tuple(layer for layer in PLAN.layers if layer.stage == "python"))
    made = [layer for layer in python.layers if not layer.text.startswith("FROM ")]

    assert next(layer.name for layer, _ in layer_sizes(python, [(layer.text, 1) for layer in made])) == "base"
