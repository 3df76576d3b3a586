"""The files of local modules in a worker: what an image has of their packages, and programs among them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from skyward.errors import WireError
from skyward.runner import process

PACKAGE = "of_a_baked_image"
SENT = (
    (f"{PACKAGE}/__init__.py", b""),
    (f"{PACKAGE}/deep/__init__.py", b"import pathlib\nplace = pathlib.Path(__file__)"),
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a new worker, whose image has a package with data."""
    baked = tmp_path / "baked"
    for name in (f"{PACKAGE}/__init__.py", f"{PACKAGE}/deep/__init__.py", f"{PACKAGE}/deep/table.csv", "beside.txt"):
        (baked / name).parent.mkdir(parents=True, exist_ok=True)
        (baked / name).write_text(f"raise ValueError({name!r})")
    monkeypatch.setattr(process, "BAKED_DIR", str(baked))
    monkeypatch.setattr(process, "_written", {})
    monkeypatch.setattr(process, "_is_replaced", False)
    monkeypatch.setattr(process, "modules_directory", tmp_path / "code")
    monkeypatch.setattr(sys, "path", [*sys.path, str(baked)])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path / "code"


def test_a_module_finds_the_baked_data_of_its_package(root: Path) -> None:
    """What is sent of a package does not hide what the image has of it, and counts where both have a file."""
    process.place_modules(SENT)
    module = importlib.import_module(f"{PACKAGE}.deep")

    assert module.place == root / PACKAGE / "deep" / "__init__.py"
    assert "table.csv" in module.place.with_name("table.csv").read_text()
    assert (root / "beside.txt").exists()


def test_a_second_worker_of_a_node_leaves_what_the_first_has_placed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers share the directory: baked files do not come back over sent ones."""
    process.place_modules(SENT)
    monkeypatch.setattr(process, "_written", {})
    process.place_modules(SENT[:1])

    assert (root / SENT[1][0]).read_bytes() == SENT[1][1]


@pytest.mark.parametrize("name", ["..", ".", "../outside.py", "a/../../outside.py"])
def test_a_path_that_leads_out_is_refused(root: Path, name: str) -> None:
    """Nothing is written there."""
    with pytest.raises(WireError, match="outside its directory"):
        process.place_modules(((name, b""),))


def test_other_data_does_not_load_modules_again(root: Path) -> None:
    """A module that is sent again does; it is imported from the folder that it is imported from on the client."""
    process.place_modules((("src/of_src/__init__.py", b"A = 1"), ("src/of_src/t.csv", b"1")), roots=["src"])
    module = importlib.import_module("of_src")
    process.place_modules((("src/of_src/t.csv", b"2"),))
    process.forget_replaced_modules()
    assert sys.modules["of_src"] is module
    assert Path(str(module.__file__)).with_name("t.csv").read_bytes() == b"2"

    process.place_modules((("src/of_src/__init__.py", b"A = 2"),))
    process.forget_replaced_modules()
    assert importlib.import_module("of_src").A == 2
