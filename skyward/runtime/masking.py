"""Masking of secrets in output: each value of `secrets=` that has at least four characters becomes `***`.

A value of several lines is masked line by line, as output consists of lines. Its usual encodings are masked, too:
quoted for a URL, escaped as in JSON and `repr`, and, for values of eight characters and more, in base64 and
hexadecimal.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

SHORTEST = 4  # characters; shorter values would mask unrelated words and numbers
_ENCODED = 8  # characters; shorter values in base64 or hexadecimal would match by chance
MASK = "***"


class Masks:
    """The values to be masked. Without values it is false, and masks nothing."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        forms = {form for line in lines if len(line) >= SHORTEST for form in (line, *_encodings(line))}
        self._values = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._values))) if self._values else None

    def __bool__(self) -> bool:
        return self._pattern is not None

    def conceal(self, text: str) -> str:
        """Return the text with all values masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def split(self, text: str) -> tuple[str, str]:
        """Return the part of a text that can be shown now, masked, and the rest, which may be the beginning of a value.

        The rest is unmasked: prepend it to the next text, or conceal it if there is none. It is empty for a complete
        line.
        """
        if self._pattern is None:
            return text, ""
        cut = min(_begun(value, text) for value in self._values)
        for found in self._pattern.finditer(text) if cut < len(text) else ():
            if found.start() < cut < found.end():
                cut = found.start()
        return self.conceal(text[:cut]), text[cut:]


def _encodings(value: str) -> Iterator[str]:
    """Yield the other common forms of a value."""
    data = value.encode("utf-8", "surrogateescape")
    yield from (quote(data, safe=""), quote(data), quote_plus(data), json.dumps(value)[1:-1], repr(value)[1:-1])
    if len(value) < _ENCODED:
        return
    yield from (data.hex(), data.hex().upper())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):  # number of preceding bytes in a group of three, as in "user:value"
            text = encode(b"\0" * before + data).decode()
            yield text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]  # those determined by the value alone


current: Masks | None = None  # masks of this process; None if there is nothing to mask


def use(values: Iterable[str]) -> None:
    """Mask these values in the output of this process from now on."""
    global current
    current = Masks(values) or None


def conceal(text: str) -> str:
    """Return a string with this process's secrets masked."""
    return text if current is None else current.conceal(text)


def _begun(value: str, text: str) -> int:
    """Return where an incomplete value at the end of a text begins; the text's length if there is none."""
    start = max(0, len(text) - len(value) + 1)
    while (start := text.find(value[0], start)) >= 0:
        if value.startswith(text[start:]):
            return start
        start += 1
    return len(text)
