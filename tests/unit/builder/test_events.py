"""What a build tells, as lines for people and as a live list."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from skyward.builder.docker.live import LiveLayers
from skyward.builder.events import Event, as_lines, note
from skyward.image import Layer

LAYER = Layer(stage="image", step=2, name="pip numpy", text="RUN x", origin="your pip=['numpy']")


def test_lines_leave_out_what_would_flood_them() -> None:
    """What steps print is for live lists and errors."""
    said: list[str] = []
    report = as_lines(said.append)
    for event in (
        note("a sentence"),
        Event(kind="start", layer=LAYER),
        Event(kind="output", layer=LAYER, line="Resolved"),
        Event(kind="done", layer=LAYER, seconds=1.25),
    ):
        report(event)
    assert said == ["a sentence", "pip numpy ... (your pip=['numpy'])", "pip numpy: 1.2 s"]


def _shown(*events: Event, height: int = 30) -> str:
    """What stays on a terminal after these events."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)
    with LiveLayers(console) as live:
        for event in events:
            live(event)
        console.print(live)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_a_running_layer_shows_its_last_line() -> None:
    """Without the colours, cursor movements and brackets that could be taken for markup."""
    shown = _shown(
        Event(kind="start", layer=LAYER),
        Event(kind="output", layer=LAYER, line="first"),
        Event(kind="output", layer=LAYER, line="\x1b[31m\x1b[2K[bold]second\x1b]0;title\x07\r"),
    )
    assert "\n  [bold]second" in shown
    assert "title" not in shown


def test_a_long_list_keeps_to_the_screen() -> None:
    """The last layers are shown, and how many are before them."""
    layers = [replace(LAYER, step=number, name=f"step {number}") for number in range(40)]
    shown = _shown(*(Event(kind="cached", layer=layer) for layer in layers), height=14)
    tail = shown[-1500:]
    assert "30 layers before" in tail
    assert "step 39" in tail
    assert "step 20" not in tail
