"""Masks secrets in what is printed: each value of `secrets=` that has at least four characters becomes `***`.

A value of several lines is masked line by line, as lines are what output is made of. So are its usual encodings: quoted
for a URL, escaped as in JSON and `repr`, and, of values of eight characters and more, in base64 and hexadecimal.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

SHORTEST = 4  # characters; shorter values would mask words and numbers that are none
_ENCODED = 8  # characters; pieces of shorter values in base64 or hexadecimal are found where they are not meant
MASK = "***"


class Masks:
    """The values to be masked. Without any it is false, and changes nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        forms = {form for line in lines if len(line) >= SHORTEST for form in (line, *_encodings(line))}
        self._values = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._values))) if self._values else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def conceal(self, text: str) -> str:
        """The text with all values masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def split(self, text: str) -> tuple[str, str]:
        """What of a string can be shown now, masked, and its end as it is, which may be the beginning of a value.

        That end is to be put before what follows it, and to be concealed where nothing does. A whole line has none.
        """
        if self._pattern is None:
            return text, ""
        cut = min(_begun(value, text) for value in self._values)
        for found in self._pattern.finditer(text) if cut < len(text) else ():
            if found.start() < cut < found.end():
                cut = found.start()
        return self.conceal(text[:cut]), text[cut:]


def _encodings(value: str) -> Iterator[str]:
    """How else a value is often written."""
    data = value.encode("utf-8", "surrogateescape")
    yield from (quote(data, safe=""), quote(data), quote_plus(data), json.dumps(value)[1:-1], repr(value)[1:-1])
    if len(value) < _ENCODED:
        return
    yield from (data.hex(), data.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):  # bytes of a group of three that stand before it, as in "user:value"
            text = encode(b"\0" * before + data).decode()
            yield text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]  # the characters that it alone decides


current: Masks | None = None  # those of this process; None where there is nothing to mask


def use(values: Iterable[str]) -> None:
    """Mask these values in what this process prints from now on."""
    global current
    current = Masks(values) or None


def conceal(text: str) -> str:
    """A string with this process's secrets masked."""
    return text if current is None else current.conceal(text)


def _begun(value: str, text: str) -> int:
    """Where the beginning of a value begins that a string ends with, but not all of it; the text's end without."""
    start = max(0, len(text) - len(value) + 1)
    while (start := text.find(value[0], start)) >= 0:
        if value.startswith(text[start:]):
            return start
        start += 1
    return len(text)
