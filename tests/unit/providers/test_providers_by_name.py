"""Providers by name: the built-in ones, and those of installed packages, in programs and on the command line."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import skyward as sky
from skyward.cli import down, ps
from skyward.providers import extensions

SOURCE = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from skyward.model.resource import Resource
from skyward.providers.base import Capabilities, Provider


@dataclass(frozen=True)
class Shelf(Provider):
    name: ClassVar[str] = "shelf"
    capabilities: ClassVar[Capabilities] = Capabilities()
    folder: str

    def open(self, request):
        raise NotImplementedError

    def find(self):
        return [
            Resource(pool=path.name, node=0, name=str(path), state="there", user="")
            for path in Path(self.folder).iterdir()
        ]

    def destroy(self, pool_id):
        (Path(self.folder) / pool_id).unlink()
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one pool; an installed package offers the provider that finds it."""
    fresh = replace(extensions())
    monkeypatch.setattr(sky.providers, "extensions", lambda: fresh)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shelf_provider.py").write_text(SOURCE)
    monkeypatch.delitem(sys.modules, "shelf_provider", raising=False)
    info = tmp_path / "sky_shelf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sky-shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[skyward.providers]\nshelf = shelf_provider:Shelf\n")
    importlib.invalidate_caches()
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "1a2b3c4d").touch()
    return folder


def test_an_installed_package_adds_a_provider(shelf: Path) -> None:
    """As an attribute, listed by dir() without being imported; it is what `ComputePool` takes."""
    assert "shelf" in dir(sky.providers)
    assert "shelf_provider" not in sys.modules
    provider = sky.providers.shelf(str(shelf))
    assert [found["pool"] for found in provider.find()] == ["1a2b3c4d"]
    assert repr(sky.ComputePool(provider)).endswith("on shelf, not open>")


def test_built_in_providers_are_there_too() -> None:
    """Under the names that `sky` has for them."""
    assert sky.providers.Local is sky.Local
    assert {"AWS", "Compose", "Docker", "Local", "SSH"} <= set(extensions().names())
    assert extensions().load("Docker") is sky.Docker


def test_the_command_line_finds_and_ends_its_pools(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`skyward ps` and `skyward down` take the name and one argument."""
    monkeypatch.setattr(sky.Docker, "find", lambda _: [])
    option = f"--at=shelf://{shelf}"
    listed = CliRunner().invoke(ps.command, ["--json", option], standalone_mode=False)
    (line,) = [json.loads(line) for line in listed.stdout.splitlines() if "1a2b3c4d" in line]
    assert (line["event"], line["where"], line["state"]) == ("node", f"shelf://{shelf}", "there")
    ended = CliRunner().invoke(down.command, ["1a2b3c4d", option], standalone_mode=False)
    assert f"pool 1a2b3c4d: 1 node ended at shelf://{shelf}" in ended.stdout
    assert list(shelf.iterdir()) == []
