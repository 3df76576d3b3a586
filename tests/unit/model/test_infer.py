"""`Image.infer`: packages of this interpreter for what code imports, found without importing or running it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import ConfigError

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
import os, skyward, odd
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
        "+ inner==2.0     imported in train.py:9, lib/more.py:2",
        "+ late==3.1      imported in train.py:7",
        "+ odd-name==1.5  imported in train.py:1",
    ]


def test_optional_and_missing_imports_are_marked(site: Path, tmp_path: Path) -> None:
    """By try and by suppress; a package is optional only where all of its imports are."""
    _package(site, "maybe", "1", "maybe")
    _package(site, "sure", "1", "sure")
    script = """\
import contextlib
try:
    import maybe, gone
except (ImportError, OSError):
    import sure
with contextlib.suppress(ImportError):
    from maybe import thing
import sure
import nowhere.at.all
from sure import name_of_no_module
"""
    found = sky.Image.infer(_files(tmp_path, {"train.py": script}) / "train.py")
    assert [(package.name, package.optional) for package in found.packages] == [("maybe", True), ("sure", False)]
    assert str(found).splitlines()[-2:] == [
        "? gone      imported in train.py:3 (optional), is not installed here",
        "? nowhere   imported in train.py:9, is not installed here",
    ]


def test_one_of_several_packages_in_a_namespace(site: Path, tmp_path: Path) -> None:
    """The files tell which package has the module."""
    _package(site, "big-one", "1", "big.one")
    _package(site, "big-two", "2", "big.two")
    found = sky.Image.infer(_files(tmp_path, {"a.py": "from big import two, three\nimport big.one"}) / "a.py")
    assert found.pip == ("big-one==1", "big-two==2")
    assert [name for name, *_ in found.missing] == ["big.three"]


def test_what_did_not_come_from_an_index_is_said(site: Path, tmp_path: Path) -> None:
    """A repository by its commit and without logins, a folder by its path, local versions without their last part."""
    git = {"url": "https://me:secret@git.example.com/a.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    _package(site, "vcs", "1", "vcs", url=git)
    _package(site, "folder", "1", "folder", url={"url": tmp_path.as_uri(), "dir_info": {}})
    _package(site, "torch", "2.9.0+cpu", "torch")
    editable = {"url": (tmp_path / "own project").as_uri(), "dir_info": {"editable": True}}
    _package(site, "own", "1", url=editable)
    _files(tmp_path / "own project", {"own/__init__.py": "import vcs\n" + RUNS})
    sys.path.append(str(tmp_path / "own project"))
    try:
        found = sky.Image.infer(_files(tmp_path, {"a.py": "import vcs, folder, torch, own"}) / "a.py")
    finally:
        sys.path.pop()
    text = str(found)
    assert found.pip == (str(tmp_path), "torch==2.9.0", "vcs @ git+https://git.example.com/a.git@c0ffee")
    assert "secret" not in text
    assert "2.9.0+cpu here" in text
    assert "sky.plugins.torch() installs it" in text
    assert found.plugins == ("torch",)
    assert sky.Image(pip=list(found.pip)).pip


def test_the_difference_to_an_image(site: Path, tmp_path: Path) -> None:
    """What is lacking, of another version, there, and not imported; only what is to be written is in `pip`."""
    for name in ("new", "old", "same"):
        _package(site, name, "2.0", name)
    found = sky.Image.infer(_files(tmp_path, {"a.py": "import new, old, same"}) / "a.py")
    (tmp_path / "needs.txt").write_text("old==1.0\n")
    image = sky.Image(pip=["same>=1", "else"], requirements=["needs.txt"])
    difference = found.diff(image, tmp_path)
    assert str(difference).splitlines() == [
        "+ new==2.0  imported in a.py:1",
        "~ old==2.0  the image has old==1.0; imported in a.py:1",
        "= same>=1   imported in a.py:1",
        "- else      in the image; nothing imports it, though other packages may need it",
    ]
    assert difference
    assert difference.pip == ("new==2.0", "old==2.0")
    assert found.diff(image.pip_install("old"), tmp_path).pip == ("new==2.0", "old==2.0")
    assert not found.diff(sky.Image(pip=["same", "old<3", "new"]))


def test_nothing_to_propose(tmp_path: Path) -> None:
    """A sentence, no empty text."""
    found = sky.Image.infer(_files(tmp_path, {"a.py": "import os"}) / "a.py")
    assert str(found) == "a.py imports nothing but the standard library and skyward."


def test_functions_need_the_module_that_defines_them(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method, a partial, a module itself, and the main program are no exception."""
    _package(site, "odd", "1", "odd")
    _files(tmp_path / "own", {"infer_me.py": "def f():\n    import odd\nclass C:\n    def m(self): ...\n"})
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    import infer_me  # type: ignore[import-not-found]

    for code in (
        infer_me.f,
        infer_me,
        infer_me.C().m,
        infer_me.C,
        functools.partial(infer_me.f),
        sky.compute(infer_me.f),
    ):
        assert sky.Image.infer(code).pip == ("odd==1",)
    program = _files(
        tmp_path, {"main.py": "def f():\n    import odd\nimport skyward\nprint(*skyward.Image.infer(f).pip)"}
    )
    (site / "odd/__init__.py").write_text("")
    path = os.pathsep.join([str(site), *sys.path])
    words, variables = [sys.executable, "main.py"], {**os.environ, "PYTHONPATH": path}
    assert (
        subprocess.run(words, cwd=program, env=variables, capture_output=True, text=True, check=True).stdout
        == "odd==1\n"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (3, "takes a function, a class, a module or the path of a script; found int"),
        ("data.csv", "takes the path of a Python script or notebook; found 'data.csv'"),
        ("nowhere.py", "nowhere.py cannot be read: No such file"),
        ("broken.py", r"broken.py cannot be read: line 1: invalid syntax"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: object, message: str) -> None:
    """Sentences."""
    monkeypatch.chdir(_files(tmp_path, {"broken.py": "def"}))
    with pytest.raises(ConfigError, match=message):
        sky.Image.infer(code)


def test_a_broken_local_module_is_said(site: Path, tmp_path: Path) -> None:
    """It is not followed; the rest is."""
    _package(site, "odd", "1", "odd")
    found = sky.Image.infer(_files(tmp_path, {"a.py": "import broken, odd", "broken.py": "def"}) / "a.py")
    assert found.pip == ("odd==1",)
    assert "# broken is not followed" in str(found)


def test_a_notebook(site: Path, tmp_path: Path) -> None:
    """Its cells in their order, without magics; places are cells and lines."""
    _package(site, "odd", "1", "odd")
    cells: list[dict[str, object]] = [
        {"cell_type": "code", "source": text, "metadata": {}} for text in ("%pip install odd", "x = 1\nimport odd")
    ]
    _files(tmp_path, {"n.ipynb": json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})})
    assert str(sky.Image.infer(tmp_path / "n.ipynb")) == "+ odd==1  imported in n.ipynb, cell 2, line 2"
