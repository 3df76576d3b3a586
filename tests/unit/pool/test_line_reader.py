"""What a source prints, as a terminal would show it: lines that are finished, rows that still change."""

from __future__ import annotations

import pytest

from skyward._pool.line_reader import LineReader

UP = "\x1b[A"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\n", "one\ntwo\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("\n\na\n", "\n\na\n"),
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),
        ("over\rwritten\nnext\n", "written\nnext\n"),
        ("no end", "no end\n"),
        ("\r 10%\r 100%\n", " 100%\n"),
        ("\r 10%\r      \r", ""),
        ("\x1b[2Jcleared\n", "cleared\n"),
        ("\x1bc\x1b]0;title\x07text\n", "\x1bc\x1b]0;title\x07text\n"),
    ],
)
def test_what_is_left_in_the_end(text: str, lines: str) -> None:
    """Whether it comes at once or in single characters; what moves the cursor is always written at once."""
    whole, pieces = LineReader(), LineReader()
    assert whole.feed(text, 0.0) + whole.finish() == lines
    if "\x1b" not in text:
        assert "".join(pieces.feed(char, 0.0) for char in text) + pieces.finish() == lines


def test_several_bars_of_tqdm() -> None:
    """The one above the cursor and those below are rows; nothing is a line before the bars are left."""
    reader = LineReader()
    for n in range(5):
        assert reader.feed(f"\router {n}", n) == ""
        assert reader.feed("\n", n) + reader.feed(f"\rinner {n}", n) + reader.feed(UP, n) == ""
        assert reader.settle(n + 0.9) == ""
        assert reader.rows == [f"outer {n}", f"inner {n}"]
    assert reader.feed("\router done\n", 5) == ""
    assert reader.settle(6) == "outer done\n"
    assert reader.finish() == "inner 4\n"


def test_a_bar_that_is_left_becomes_a_line() -> None:
    """A moment later, or when something else is printed below it."""
    reader = LineReader()
    assert reader.feed("\r100%\n", 0.0) == ""
    assert reader.settle(0.1) == ""
    assert reader.settle(0.5) == "100%\n"
    assert reader.is_empty
    reader.feed("\r100%\n", 1.0)
    assert reader.feed("done\n", 1.0) == "100%\ndone\n"


def test_the_live_region_of_rich() -> None:
    """Hidden cursor, rows drawn again from the top; what it prints above them are lines."""
    reader = LineReader()
    assert reader.feed("\x1b[?25lone 0%\ntwo 0%", 0.0) == ""
    for n in range(1, 4):
        assert reader.feed(f"\r\x1b[2K\x1b[1A\x1b[2Kone {n}%\ntwo {n}%", n / 10) == ""
        assert reader.rows == [f"one {n}%", f"two {n}%"]
    above = reader.feed("\r\x1b[2K\x1b[1A\x1b[2Kprinted\none 4%\ntwo 4%", 0.5)
    above += reader.feed("\r\x1b[2K\x1b[1A\x1b[2Kone 5%\ntwo 5%", 0.6)
    assert above == "printed\n"
    assert reader.rows == ["one 5%", "two 5%"]
    assert reader.feed("\n", 0.7) + reader.feed("\x1b[?25h", 0.7) == ""
    assert reader.settle(1.5) == "one 5%\ntwo 5%\n"
    assert reader.feed("\n", 2.0) + reader.finish() == ""


def test_a_line_of_many_pieces() -> None:
    """Ten million characters come as one line, in time that grows with its length only."""
    reader = LineReader()
    piece = "x" * 65536
    assert not any(reader.feed(piece, 0.0) for _ in range(160))
    assert len(reader.feed("\n", 0.0)) == 160 * 65536 + 1
