"""A workspace with a lock, built on the real engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

import skyward as sky
from tests.e2e.building import Built
from tests.unit.builder.wheels import make_wheel

PROJECT = """
[project]
name = "{name}"
version = "1.0"
requires-python = ">=3.11"
dependencies = [{needs}]
[build-system]
requires = ["flit_core"]
build-backend = "flit_core.buildapi"
[tool.flit.module]
name = "{module}"
"""
WORKSPACE = """
[tool.uv]
constraint-dependencies = ["lockedleaf<2"]
[tool.uv.sources]
workspace-member = { workspace = true }
[tool.uv.workspace]
members = ["members/*"]
"""


@pytest.fixture
def built(engine: Any) -> Iterator[Built]:
    built = Built(sky.Docker().images, engine)
    yield built
    built.remove()


def test_a_workspace_as_its_lock_has_it(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constraint's version, the member and the project are there; an edit of the project's code remakes its layer.

    What the lock does not name, such as the group, is not.
    """
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "wheels", "lockedleaf", version)
    make_wheel(tmp_path / "wheels", "lockedextra", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'wheels'} {os.environ.get('PIP_FIND_LINKS', '')}")
    root = tmp_path / "work"
    member = root / "members/one"
    member.mkdir(parents=True)
    needs = '"lockedleaf", "workspace-member"'
    groups = '[dependency-groups]\ndev = ["lockedextra"]\n'
    (root / "pyproject.toml").write_text(
        PROJECT.format(name="workspace-app", needs=needs, module="workspace_app") + groups + WORKSPACE
    )
    (member / "pyproject.toml").write_text(
        PROJECT.format(name="workspace-member", needs='"lockedleaf"', module="workspace_member")
    )
    (root / "workspace_app.py").write_text('"""App."""\n__version__ = "1"\nvalue = 1\n')
    (member / "workspace_member.py").write_text('"""Member."""\n__version__ = "1"\n')
    for folder in (root, member):  # versions and descriptions are in [project]
        text = (folder / "pyproject.toml").read_text()
        (folder / "pyproject.toml").write_text(text.replace('version = "1.0"', 'version = "1.0"\ndescription = "x"'))
    words = [uv.find_uv_bin(), "lock", "--quiet", "--no-index", "--find-links", str(tmp_path / "wheels")]
    subprocess.run(words, cwd=root, check=True)
    monkeypatch.chdir(root)
    say = "import workspace_app, workspace_member, lockedleaf; print(lockedleaf.version, workspace_app.value)"
    image = sky.Image.from_project(".")
    assert built.run(built(image), say).split() == ["1.0", "1"]

    (root / "workspace_app.py").write_text('"""App."""\n__version__ = "1"\nvalue = 2\n')
    plan = built(image)
    assert built.run(plan, f"{say}; import importlib.util as u; print(u.find_spec('lockedextra'))").split() == [
        "1.0",
        "2",
        "None",
    ]
    assert built.made_anew() == ["project workspace-app"]
