"""The page of figures says what the last run has measured."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks.peers import RESULTS
from benchmarks.peers_page import PAGE, PLOT, plot, written


def test_the_page_and_the_plot_are_those_of_the_results() -> None:
    """`python -m benchmarks.peers_page` writes them anew."""
    found = json.loads(RESULTS.read_text())
    assert written(PAGE.read_text(), found) == PAGE.read_text()
    assert plot(found) == PLOT.read_text()


def test_the_plot_has_a_bar_for_each_figure() -> None:
    """Each as long as its logarithm, none outside the picture."""
    figures = {"skyward": {"p50_us": 10.0, "idle_mb": 80.0}, "ray": {"p50_us": 1000.0}}
    drawing = ElementTree.fromstring(plot({"figures": figures}))
    bars = [float(bar.attrib["width"]) for bar in drawing.iter("{http://www.w3.org/2000/svg}rect")]
    texts = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert len(bars) == 3
    assert bars[0] == pytest.approx(bars[1] / 3, abs=0.1)
    assert {"1,000", "10", "80"} <= set(texts)
