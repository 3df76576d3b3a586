"""Packages without a wheel, built in the image: by what that image has, from what the lock has, twice the same."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import BuildError
from tests.e2e.building import Built
from tests.unit.builder.wheels import make_sdist

SYSTEM = '[build-system]\nrequires = ["setuptools>=61"]\nbuild-backend = "setuptools.build_meta"\n'
PROJECT = '[project]\nname = "{0}"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["{0}"]\n'
SETUP = """
import os
from setuptools import setup
with open("{0}.py", "w") as file:
    file.write("flags = %r" % os.environ.get("FLAGS"))
setup(name="{0}", version="1.0", py_modules=["{0}"])
"""


@pytest.fixture(scope="module")
def built(engine: Any) -> Iterator[Built]:
    built = Built(sky.Docker().images, engine)
    yield built
    built.remove()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Besides this machine's package sources."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_each_image_has_its_own_build(built: Built, folder: Path) -> None:
    """Variables of the build, which a cached wheel of another image's build does not have.

    What differs without an effect gives the same bytes, of a package of an index and of a project, each built anew.
    """
    name, project = f"seen{secrets.token_hex(4)}", f"mine{secrets.token_hex(4)}"
    make_sdist(folder, name, "1.0", {"setup.py": SETUP.format(name)})
    (folder / project).mkdir()
    (folder / project / "pyproject.toml").write_text(SYSTEM + PROJECT.format(project))
    (folder / project / f"{project}.py").write_text("x = 1\n")
    code = f"import {name}, {project}; print({name}.flags, {project}.x)"
    # the digests of layers would not do: builders change the time of /etc, which comes with each
    look = (
        "import hashlib, os, pathlib; found = sorted(p for top in ('/opt', '/tmp', '/var', '/usr') "
        "for p in pathlib.Path(top).rglob('*')); "
        "print(hashlib.sha256(repr([(str(p), p.lstat().st_mtime_ns, p.lstat().st_mode, "
        "p.is_file() and hashlib.sha256(p.read_bytes()).hexdigest()) for p in found]).encode()).hexdigest())"
    )
    plans = [
        built(sky.Image(pip=[name, f"{folder}/{project}"], build_env=env))
        for env in ({"FLAGS": "off"}, {"FLAGS": "on"}, {"FLAGS": "off", "OTHER": "1"})
    ]
    assert [built.run(plan, code) for plan in plans] == ["off 1\n", "on 1\n", "off 1\n"]
    first, other, same = (built.run(plan, look) for plan in plans)
    assert first == same
    assert first != other


def test_what_a_build_asks_for_and_the_lock_does_not_have(built: Built, folder: Path) -> None:
    """It is not fetched from wherever it may be: the build ends, and the error says what and why."""
    name = f"asking{secrets.token_hex(4)}"
    setup = "from setuptools import setup\nsetup(setup_requires=['si' + 'x'])\n"
    make_sdist(folder, name, "1.0", {"setup.py": setup})
    with pytest.raises(BuildError, match=r"'six', which the lock does not have"):
        built(sky.Image(pip=[name]))
