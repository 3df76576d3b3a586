"""Splitting of a source's output into finished lines and rows that may still change.

Programs draw progress by returning to the beginning of the line (tqdm) or by moving up some lines (several tqdm bars,
rich). The reader emulates a terminal with a cursor; a row to which the cursor will not return becomes a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MOVE = r"\x1b\[([0-9;?]*)([A-DG-KST@LMPXfhlsu])"  # sequences that move the cursor or clear; colours are text
_TOKEN = re.compile(rf"\r|\n|{_MOVE}|(?:[^\r\n\x1b]|(?!\x1b\[[0-9;?]*[A-DG-KST@LMPXfhlsu])\x1b)+")
_LEFT_S = 0.3  # after which a row above the cursor is finished
_LEFT_LIVE_S = 1.5  # the same, for a program that hides the cursor and redraws all its rows several times a second
_MOST_ROWS = 200
_SHOWN = 1000  # characters shown of an unfinished line
LONGEST_LINE = 64 * 1024 * 1024  # characters; a longer line is broken


@dataclass(slots=True)
class _Row:
    text: str
    touched: float
    is_progress: bool = False  # whether it was overwritten


class LineReader:
    """Reads one stream of one source."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._at = 0
        self._parts: list[str] = []  # of an unfinished line that was never overwritten
        self._length = 0
        self._since = 0.0
        self._returned = self._live = self._went_up = self._controlled = False

    def feed(self, text: str, now: float) -> str:
        """Process text and return the lines that it finishes, each with its newline."""
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        if "\r" not in text and "\x1b" not in text and not self._is_drawn:
            return self._feed_plain(text, now)
        if self._parts:
            self._rows, self._at = [_Row("".join(self._parts), now)], 0
            self._parts.clear()
        done: list[str] = []
        for token in _TOKEN.finditer(text):
            what = token[0]
            if what == "\r":
                self._returned = True
            elif what == "\n":
                self._down(done, now)
            elif token[2]:
                self._control(token[1], token[2])
            else:
                self._write(what, done, now)
        return "".join(f"{line}\n" for line in done)

    def settle(self, now: float) -> str:
        """Remove and return, as lines, the rows above the cursor that have not changed for long enough."""
        limit_s = _LEFT_LIVE_S if self._live else _LEFT_S
        count = 0
        while count < self._at and now - self._rows[count].touched > limit_s:
            count += 1
        return "".join(f"{line}\n" for line in self._take(count))

    def finish(self) -> str:
        """Remove and return everything that is unfinished, as lines, at the end of the output."""
        rows, self._rows, self._at = self._rows, [], 0
        if self._parts:
            rows.append(_Row("".join(self._parts), 0.0))
            self._parts.clear()
        self._returned = self._live = False
        return "".join(f"{row.text.rstrip()}\n" for row in rows if row.text.strip())

    @property
    def rows(self) -> list[str]:
        """The unfinished rows, without empty ones."""
        begun = "".join(self._parts)[:_SHOWN].strip() if self._parts else ""
        return [row.text for row in self._rows if row.text.strip()] + [begun] * bool(begun)

    @property
    def is_progress(self) -> bool:
        """Whether a row has been overwritten, or the program hides the cursor."""
        return self._live or any(row.is_progress for row in self._rows)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is unfinished."""
        return not self._parts and not self._live and not any(row.text for row in self._rows)

    @property
    def begun_at(self) -> float | None:
        """When text was last added to the unfinished line that was never overwritten; None if there is no such line."""
        return self._since if self._parts else None

    @property
    def leaves_rows(self) -> bool:
        """Whether there are rows above the cursor, which `settle` may return."""
        return self._at > 0

    @property
    def _is_drawn(self) -> bool:
        return self._returned or self._live or any(row.text or row.is_progress for row in self._rows)

    def _feed_plain(self, text: str, now: float) -> str:
        self._rows.clear()
        self._at = 0
        whole, newline, rest = text.rpartition("\n")
        if newline:
            whole = "".join(self._parts) + whole + newline
            self._parts.clear()
        if rest:
            self._parts.append(rest)
            self._length = len(rest) if newline else self._length + len(rest)
            self._since = now
            if self._length > LONGEST_LINE:
                whole += "".join(self._parts) + "\n"
                self._parts.clear()
        return whole

    def _row(self, now: float) -> _Row:
        while len(self._rows) <= self._at:
            self._rows.append(_Row("", now))
        return self._rows[self._at]

    def _write(self, text: str, done: list[str], now: float) -> None:
        if self._live and self._went_up:  # a live program redraws from here; rows above are finished
            done += self._take(self._at)
        self._went_up = self._controlled = False
        row = self._row(now)
        row.is_progress |= self._returned
        row.text = text if self._returned else row.text + text
        row.touched, self._returned = now, False

    def _down(self, done: list[str], now: float) -> None:
        row = self._row(now)
        row.touched = now
        is_last = self._at == len(self._rows) - 1
        if is_last and not self._live and not row.is_progress:
            done += self._take(len(self._rows), keep_last=not self._controlled)
            self._rows.clear()
            self._returned = self._controlled = False
            return
        self._at += 1
        self._row(now)
        self._returned = not is_last or self._live
        if len(self._rows) > _MOST_ROWS:
            done += self._take(1)

    def _control(self, parameters: str, what: str) -> None:
        self._controlled = True  # a row that received only control sequences is not an empty line
        count = int(parameters) if parameters.isdigit() else 1
        if what == "A":
            self._at = max(0, self._at - count)
            self._returned = self._went_up = True
        elif what == "B":
            self._at = min(max(0, len(self._rows) - 1), self._at + count)
        elif what == "G":
            self._returned = True
        elif what in "JK" and self._at < len(self._rows):
            if what == "J":
                del self._rows[self._at + 1 :]
            if self._returned or parameters == "2":
                self._rows[self._at].text = ""
        elif parameters == "?25" and what in "hl":
            self._live = what == "l"

    def _take(self, count: int, *, keep_last: bool = False) -> list[str]:
        """Remove the first rows and return them as lines, without empty ones, except a last one if `keep_last`."""
        taken, self._rows = self._rows[:count], self._rows[count:]
        self._at = max(0, self._at - count)
        last = taken[-1] if keep_last and taken else None
        return [row.text.rstrip() if row.is_progress else row.text for row in taken if row.text.strip() or row is last]
