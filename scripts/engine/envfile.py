"""The file `.engine/env`: `export NAME='value'` lines for shells to source."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """The variables of an env file; empty when there is none."""
    words = shlex.split(path.read_text()) if path.exists() else []
    return {name: value for name, is_set, value in (word.partition("=") for word in words) if is_set}


def write(path: Path, values: Mapping[str, str]) -> None:
    """Put the file in place at once, so that nobody sources half of it; an equal one is left alone."""
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
    if path.exists() and path.read_text() == text:
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
