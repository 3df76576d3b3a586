"""Masks secrets in what is printed: each value of `secrets=` that has at least four characters becomes `***`.

A value of several lines is masked line by line, as lines are what output is made of. Encoded forms of a value (quoted
for a URL, in base64) are not known here and stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHORTEST = 4  # characters; shorter values would mask words and numbers that are none
MASK = "***"


class Masks:
    """The values to be masked. Without any it is false, and changes nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        self._values = sorted((line for line in lines if len(line) >= SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._values))) if self._values else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def conceal(self, text: str) -> str:
        """The text with all values masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def split(self, text: str) -> tuple[str, str]:
        """What of a text can be shown now, masked, and its end as it is, which may be the beginning of a value.

        That end is to be put before what follows it, and to be concealed where nothing does. A whole line has none.
        """
        if self._pattern is None:
            return text, ""
        cut = min(_begun(value, text) for value in self._values)
        for found in self._pattern.finditer(text) if cut < len(text) else ():
            if found.start() < cut < found.end():
                cut = found.start()
        return self.conceal(text[:cut]), text[cut:]


current: Masks | None = None  # those of this process; None where there is nothing to mask


def use(values: Iterable[str]) -> None:
    """Mask these values in what this process prints from now on."""
    global current
    current = Masks(values) or None


def conceal(text: str) -> str:
    """A text with this process's secrets masked."""
    return text if current is None else current.conceal(text)


def _begun(value: str, text: str) -> int:
    """Where the beginning of a value begins that a text ends with, but not all of it; the text's end without."""
    start = max(0, len(text) - len(value) + 1)
    while (start := text.find(value[0], start)) >= 0:
        if value.startswith(text[start:]):
            return start
        start += 1
    return len(text)
