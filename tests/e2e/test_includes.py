"""Which files of `Image(includes=...)` nodes get: over the connection, and in an image."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward as sky
from tests.e2e.functions import files_beside

EXPECTED = ["my src/.gitignore", "my src/data ü/t.csv", "my src/link/m.py", "my src/pkg/m.py", "src.key"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with what is taken, what is ignored and a key that is named."""
    for name in ("my src/pkg/m.py", "my src/data ü/t.csv", "my src/.env", "my src/out/x.py", "src.key", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "my src/.gitignore").write_text(".env\nout/\n")
    (tmp_path / "my src/link").symlink_to("pkg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("bake", [False, True])
def test_nodes_get_what_is_meant(project: Path, bake: bool) -> None:
    """A linked package, names with spaces and other letters; nothing that is ignored."""
    provider = sky.Docker() if bake else sky.Local()
    image = sky.Image(includes=["my src", "src.key"], bake=bake)
    with sky.ComputePool(provider, image=image, display="quiet") as pool:
        assert files_beside("my src", "src.key", "other.py") >> pool == EXPECTED
