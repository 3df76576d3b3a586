"""Where ranks were when another one failed, in a few lines: the user's innermost frames, and the call they wait in."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from skyward.wire.exceptions import Record

_SENT = "/.skyward-code/"  # before the path of a module that came from the client
_USERS = 3  # of the user's own frames that are shown
_TEXT = 200  # characters of an error's text
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|^<frozen|/skyward/(runner|runtime|wire|plugins|integrations)/"
)
_IN_TRACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>.+)$')


class Place(NamedTuple):
    """One frame."""

    file: str
    line: int
    name: str
    source: str

    @property
    def is_library(self) -> bool:
        """Whether it is not the user's own code."""
        return bool(_LIBRARY.search(self.file))

    def __str__(self) -> str:
        source = self.source or linecache.getline(self.file, self.line).strip()  # only here for code sent by value
        file = self.file.rpartition(_SENT)[2]
        return f'  File "{file}", line {self.line}, in {self.name}' + (f"\n    {source}" if source else "")


def of_sample(sample: Mapping[str, Any]) -> list[Place]:
    """The frames that a worker told, outermost first."""
    return [Place(*frame) for frame in sample.get("frames", ())]


def of_dump(text: str) -> list[Place]:
    """The frames that faulthandler wrote."""
    return _read(text.splitlines())[::-1]


def of_record(record: Record) -> list[Place]:
    """The frames in which an exception was raised."""
    return _read(record.trace.rpartition("Traceback (most recent call last):")[2].splitlines())


def shown(places: list[Place]) -> str:
    """What is shown of a stack: the user's innermost frames, and the innermost of all."""
    users = [place for place in places if not place.is_library][-_USERS:] or places[-_USERS:-1]
    return "\n".join(map(str, dict.fromkeys([*users, *places[-1:]])))


def said(record: Record) -> str:
    """The first line of an exception, with its type."""
    text = record.text.partition("\n")[0]
    name = record.type_name.rpartition(".")[2]
    return f"{name}: {text[:_TEXT]}{'...' * (len(text) > _TEXT)}" if text else name


def listed(accounts: Iterable[tuple[str, str]]) -> str:
    """Ranks and what became of them, those that share it named together."""
    by_account: dict[str, list[str]] = {}
    for name, account in accounts:
        by_account.setdefault(account, []).append(name)
    return "\n".join(f"{', '.join(names)} {account}" for account, names in by_account.items())


def _read(lines: list[str]) -> list[Place]:
    places = []
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        if frame := _IN_TRACE.match(line):
            source = "" if _IN_TRACE.match(following) or not following.startswith("    ") else following.strip()
            places.append(Place(frame["file"], int(frame["line"]), frame["name"], source))
    return places
