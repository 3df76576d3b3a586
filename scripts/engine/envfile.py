"""The file `.engine/env`: `export NAME='value'` lines for shells to source."""

import os
import re
from collections.abc import Mapping
from pathlib import Path


def render(values: Mapping[str, str]) -> str:
    """The text of an env file. A value may hold anything but a NUL byte, quotes and line ends included."""
    return "".join(f"export {name}={quote(value)}\n" for name, value in values.items())


def quote(value: str) -> str:
    """Quote for a POSIX shell, always with single quotes."""
    return "'" + value.replace("'", "'\\''") + "'"


def parse(text: str) -> dict[str, str]:
    """The variables of a text that `render` made."""
    found = re.findall(r"^export (\w+)='((?:[^']|'\\'')*)'$", text, re.MULTILINE)
    return {name: value.replace("'\\''", "'") for name, value in found}


def read(path: Path) -> dict[str, str]:
    """The variables of an env file; empty when there is none."""
    return parse(path.read_text()) if path.exists() else {}


def write(path: Path, values: Mapping[str, str]) -> None:
    """Put the file in place at once, so that nobody sources half of it; an equal one is left alone."""
    text = render(values)
    if path.exists() and path.read_text() == text:
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
