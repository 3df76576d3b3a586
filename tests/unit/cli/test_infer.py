"""`Image.infer`: packages of this interpreter for what code imports, found without importing or running it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import ConfigError
from tests.unit.cli.conftest import Skyward

RUNS = "raise SystemExit('it was run')\n"


def _files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _package(site: Path, name: str, version: str, *imported: str, url: Mapping[str, object] | None = None) -> None:
    """A package as pip leaves it."""
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    _files(about, {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"})
    files = [f"{module.replace('.', '/')}/__init__.py" for module in imported]
    _files(site, dict.fromkeys(files, RUNS))
    _files(about, {"RECORD": "".join(f"{file},,\n" for file in files)})
    if url is not None:
        _files(about, {"direct_url.json": json.dumps(url)})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, before all others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_script_and_its_local_modules(site: Path, tmp_path: Path) -> None:
    """Names of packages, not of modules, versions as installed, each with its places; nothing is run."""
    _package(site, "Odd.Name", "1.5", "odd")
    _package(site, "inner", "2.0", "inner")
    _package(site, "late", "3.1", "late")
    script = """\
import os, skyward, odd, nowhere.at.all
from lib import data
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import only_types
def train():
    import late.deep
    import importlib
    importlib.import_module("inner")
"""
    _files(tmp_path / "app", {"train.py": script + RUNS, "lib/__init__.py": "", "lib/data.py": "from . import more"})
    _files(tmp_path / "app", {"lib/more.py": "from ..lib import data\nimport inner\n" + RUNS})
    found = sky.Image.infer(str(tmp_path / "app/train.py"))
    assert found.pip == ("inner==2.0", "late==3.1", "odd-name==1.5")
    assert str(found).splitlines() == [
        "inner==2.0  # imported in train.py:9, lib/more.py:2",
        "late==3.1  # imported in train.py:7",
        "odd-name==1.5  # imported in train.py:1",
        "# nowhere is imported in train.py:1, and is not installed here",
    ]


def test_what_did_not_come_from_an_index_is_said(site: Path, tmp_path: Path) -> None:
    """A repository by its commit and without logins, a folder by its path, local versions without their last part."""
    git = {"url": "https://me:secret@git.example.com/a.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    _package(site, "vcs", "1", "vcs", url=git)
    _package(site, "folder", "1", "folder", url={"url": tmp_path.as_uri(), "dir_info": {}})
    _package(site, "torch", "2.9.0+cpu", "torch")
    _package(site, "own", "1", "own", url={"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    found = sky.Image.infer(_files(tmp_path, {"a.py": "import vcs, folder, torch, own"}) / "a.py")
    assert found.pip == (str(tmp_path), "torch==2.9.0", "vcs @ git+https://git.example.com/a.git@c0ffee")
    assert "sky.plugins.torch() installs it and sets it up; 2.9.0+cpu here" in str(found)
    assert found.plugins == ("torch",)
    assert sky.Image(pip=list(found.pip)).pip


def test_functions_need_the_file_that_defines_them(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method, a partial and a module are no exception."""
    _package(site, "odd", "1", "odd")
    _files(tmp_path / "own", {"infer_me.py": "def f():\n    import odd\nclass C:\n    def m(self): ...\n"})
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    import infer_me  # type: ignore[import-not-found]

    own = infer_me.f, infer_me, infer_me.C().m, infer_me.C, functools.partial(infer_me.f), sky.compute(infer_me.f)
    assert {sky.Image.infer(code).pip for code in own} == {("odd==1",)}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (3, "or a function, a class or a module that a file defines; found int"),
        ("data.csv", "takes the path of a Python script or notebook; found 'data.csv'"),
        ("nowhere.py", "nowhere.py cannot be read: No such file"),
        ("local.py", r"broken.py cannot be read: line 1: invalid syntax"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: object, message: str) -> None:
    """Sentences, also for a local module."""
    monkeypatch.chdir(_files(tmp_path, {"broken.py": "def", "local.py": "import broken"}))
    with pytest.raises(ConfigError, match=message):
        sky.Image.infer(code)


def test_a_notebook_on_the_command_line(site: Path, tmp_path: Path, skyward: Skyward) -> None:
    """Its cells in their order, without magics; places are cells and lines. As JSON, too."""
    _package(site, "odd", "1", "odd")
    cells: list[dict[str, object]] = [
        {"cell_type": "code", "source": text, "metadata": {}} for text in ("%pip install odd", "x = 1\nimport odd")
    ]
    _files(tmp_path, {"n.ipynb": json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})})
    found = skyward("image", "infer", tmp_path / "n.ipynb")[1]
    assert found == "odd==1  # imported in n.ipynb, cell 2, line 2\n"
    assert json.loads(skyward("image", "infer", tmp_path / "n.ipynb", "--json")[1])["pip"] == ["odd==1"]
    _files(tmp_path, {"os.py": "import sys"})
    assert "imports nothing but" in str(sky.Image.infer(tmp_path / "os.py"))
