"""Output below Python: whole lines, whole characters, and the end of it kept."""

from __future__ import annotations

import pytest

from skyward.runner.children import PARTIAL_S, Lines


def test_lines_are_passed_on_whole() -> None:
    """What follows the last line end waits for its rest."""
    lines = Lines()
    assert lines.feed(b"one\ntwo\nthr", 0.0) == "one\ntwo\n"
    assert lines.feed(b"ee\n", 0.0) == "three\n"
    assert lines.due() is None


def test_the_start_of_a_line_waits_from_its_first_byte() -> None:
    """A progress bar that never ends its line is shown nevertheless, however often it writes."""
    lines = Lines()
    assert lines.feed(b"10 %", 5.0) == ""
    assert lines.feed(b" 20 %", 5.05) == ""
    assert lines.due() == 5.0 + PARTIAL_S
    assert lines.flush() == "10 % 20 %"
    assert lines.due() is None
    lines.feed(b"x\ny", 6.0)
    assert lines.due() == 6.0 + PARTIAL_S


@pytest.mark.parametrize("text", ["é", "日本語", "🛰️ up"])
def test_characters_are_never_cut(text: str) -> None:
    """Bytes that come one at a time give the same text."""
    lines, out = Lines(), ""
    for byte in text.encode():
        lines.feed(bytes((byte,)), 0.0)
        out += lines.flush()
    assert out == text


def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    """Memory is bounded: 64 KiB wait at most."""
    lines = Lines()
    assert lines.feed(b"x" * 70_000, 0.0) == "x" * 70_000
