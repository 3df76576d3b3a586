"""Modules by name, found as an import would find them, without importing anything."""

from __future__ import annotations

import os
import pkgutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path

_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})


@dataclass(frozen=True, slots=True)
class Module:
    """A module that is there.

    Attributes:
        file: its source; None for a namespace package, and for what has none.
        places: directories of its submodules; empty if it is no package.
        is_local: whether it is the user's own: neither of the standard library nor installed.
    """

    file: Path | None
    places: tuple[str, ...]
    is_local: bool


@lru_cache(maxsize=4096)
def find_module(name: str, path: tuple[str, ...]) -> Module | None:
    """The module of that name (with dots) as code finds it whose `sys.path` is this; None if there is none."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        spec = _spec(name, path) or _by_other_finders(name)
    else:
        above = find_module(parent, path)
        spec = _spec(name, above.places) if above else None
    if spec is None:
        return None
    places = tuple(spec.submodule_search_locations or ())
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return Module(file, places, any(map(_is_local, (*([str(file)] if file else []), *places))))


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    portions: list[str] = []
    for place in path:
        finder = pkgutil.get_importer(place or os.getcwd())  # noqa: PTH109 - as the import system does
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _by_other_finders(name: str) -> ModuleSpec | None:
    """What finders besides those of `sys.path` know: those of editable installs, for one."""
    for finder in sys.meta_path:
        if finder not in (BuiltinImporter, FrozenImporter, PathFinder):
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec
    return None


def _is_local(file: str) -> bool:
    real = os.path.realpath(file)
    inside = any(real.startswith(root + os.sep) for root in _STDLIB)
    return not inside and not _INSTALLED.intersection((*Path(file).parts, *Path(real).parts))
