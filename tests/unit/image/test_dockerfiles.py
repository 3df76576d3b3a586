"""The descriptions in `images/` and the Dockerfiles made of them that are checked in."""

from pathlib import Path

import pytest

from scripts import dockerfiles

PATHS = sorted(dockerfiles.IMAGES.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_dockerfiles_are_what_the_compiler_makes(path: Path) -> None:
    """A Dockerfile that is checked in is the one compiled today; `make dockerfiles` rewrites them."""
    kept = dockerfiles.DOCKERFILES / f"{path.stem}.Dockerfile"
    assert kept.read_text(encoding="utf-8") == dockerfiles.text_of(path), "run `make dockerfiles` and look at the diff"


def test_the_machine_does_not_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the site's base nor the working directory changes a Dockerfile."""
    monkeypatch.setenv("SKYWARD_BASE", "registry.example/other:1")
    monkeypatch.chdir(tmp_path)
    for path in PATHS:
        text = dockerfiles.text_of(path)
        assert "registry.example" not in text
        assert str(dockerfiles.ROOT) not in text
