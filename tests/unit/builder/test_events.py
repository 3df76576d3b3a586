"""What a build tells, as lines for people and as a live list."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from skyward.builder.docker.live import LiveLayers
from skyward.builder.events import Event, as_lines, note, readable, share
from skyward.image import Layer

LAYER = Layer(stage="image", step=2, name="pip numpy", text="RUN x", origin="your pip=['numpy']")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (note("a sentence"), "a sentence"),
        (Event(kind="start", layer=LAYER), "pip numpy ... (your pip=['numpy'])"),
        (Event(kind="output", layer=LAYER, line="Resolved"), "Resolved"),
        (Event(kind="cached", layer=LAYER), "pip numpy: cached"),
        (Event(kind="done", layer=LAYER, seconds=1.25), "pip numpy: 1.2 s"),
        (Event(kind="failed", layer=LAYER), "pip numpy: failed"),
    ],
    ids=lambda value: value.kind if isinstance(value, Event) else "",
)
def test_every_event_has_a_line(event: Event, line: str) -> None:
    """The text of an event is what people read."""
    assert str(event) == line


def test_lines_leave_out_what_would_flood_them() -> None:
    """What steps print is for live lists and errors."""
    said: list[str] = []
    report = as_lines(said.append)
    for event in (note("a"), Event(kind="output", layer=LAYER, line="b")):
        report(event)
    assert said == ["a"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (412_765_573, "413 MB"), (7e12, "7 TB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    """Decimal units, as docker has them."""
    assert readable(size) == text


def _shown(*events: Event, height: int = 30, running: bool = False) -> str:
    """What stays on a terminal after these events."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)
    with LiveLayers(console) as live:
        for event in events:
            live(event)
        if running:
            console.print(live)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_a_layer_has_one_row() -> None:
    """At the end the row says how long it took; its output is gone."""
    shown = _shown(
        note("building x"),
        Event(kind="start", layer=LAYER),
        Event(kind="output", layer=LAYER, line="Resolved"),
        Event(kind="done", layer=LAYER, seconds=12.5),
    )
    last = [line for line in re.split(r"[\r\n]", shown) if "pip numpy" in line][-1]
    assert "skyward: building x" in shown
    assert re.fullmatch(r"✓ pip numpy  your pip=\['numpy'\] +12\.5 s *", last)


def test_a_running_layer_shows_its_last_line() -> None:
    """Without the colours, cursor movements and brackets that could be taken for markup."""
    shown = _shown(
        Event(kind="start", layer=LAYER),
        Event(kind="output", layer=LAYER, line="first"),
        Event(kind="output", layer=LAYER, line="\x1b[31m\x1b[2K[bold]second\x1b]0;title\x07\r"),
        running=True,
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


def test_a_share_is_never_more_than_all() -> None:
    """Sizes are estimates: what an engine sends has a form of its own."""
    assert share(156_000_000, 155_000_000) == "155 MB of 155 MB"
    assert share(-1, 10) == "0 B of 10 B"
