"""What Podman prints of a build, as events of the same kind as BuildKit's."""

from __future__ import annotations

import skyward as sky
from skyward.builder.docker.output import BuildahProgress, Progress
from skyward.builder.events import Event
from tests.unit.image.images import compiled


def test_steps_of_podman() -> None:
    """Cached, made and failed steps are those of our layers; what a failing one has printed is its log."""
    plan = compiled(sky.Image(run=["echo one", "echo two", "exit 7"]))
    one, two, three = (layer for layer in plan.layers if layer.name.startswith("run "))
    lines = []
    for stage in dict.fromkeys(layer.stage for layer in plan.layers):
        for layer in (each for each in plan.layers if each.stage == stage):
            lines += [f"[1/2] STEP 1/9: {text}" for text in layer.text.replace("\\\n", "").splitlines()]
            if layer is one:
                lines.append("--> Using cache 47d338492825")
            elif layer is two:
                lines += ["two", "--> 3cb109e0ce0"]
            elif layer is three:
                lines += ["last words", 'Error: building at STEP "RUN x": while running runtime: exit status 7']
                break
    events: list[Event] = []
    progress = Progress(plan, events.append)
    follower = BuildahProgress(progress)
    for line in lines:
        follower.feed(line)

    told = [(event.layer, event.kind, event.line) for event in events if event.layer in (one, two, three)]
    assert (one, "cached", "") in told
    assert (two, "output", "two") in told
    assert [kind for layer, kind, _ in told if layer is two] == ["start", "output", "done"]
    assert told[-1] == (three, "failed", "")
    assert progress.failed is three
    assert progress.log == "last words"
    assert "exit code: 7" in progress.ending
