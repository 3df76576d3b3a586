"""Tells of a module whose file was edited after this program imported it: nodes would run other code than this."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any


def is_edited(names: dict[str, Any], live: Iterable[object], source: bytes) -> bool:
    """Whether functions of an imported module are not those of its file.

    Python keeps no source of what it has imported. So the code of its functions is compared with what the file
    compiles to; an edit that changes values alone, and moves no function, is not found. Functions that the file has no
    more may be left from before a reload. Modules of loaders that change the code of a file, as that of pytest does,
    are not compared.

    Args:
        names: the module's.
        live: what they stand for, the code of functions among it.
        source: the content of its file now.
    """
    file = names.get("__file__")
    if type(getattr(names.get("__spec__"), "loader", None)) is not SourceFileLoader or not isinstance(file, str):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # of the file: told when it was imported
            there = set(_all_codes(compile(source, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return True  # this is not what was imported
    by_name = {code.co_qualname for code in there}
    codes = [each for each in live if isinstance(each, CodeType) and each.co_filename == file]
    return any(code.co_qualname in by_name and code not in there for code in codes)


def _all_codes(code: CodeType) -> Iterable[CodeType]:
    """A code object, and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_codes(constant)


def warning(module: ModuleType) -> str:
    """What is said of such a module."""
    return (
        f"{module.__name__} ({module.__file__}) was edited after this program imported it: nodes run the file as it is "
        "now, this program what it has imported. Load it again, with importlib.reload or by starting anew."
    )
