"""The descriptions in `images/` and the Dockerfiles made of them that are checked in."""

from pathlib import Path

import pytest

from scripts import dockerfiles

PATHS = sorted(dockerfiles.IMAGES.glob("*.toml"))
NAMES = {path.stem for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_dockerfiles_are_what_the_compiler_makes(path: Path) -> None:
    """A Dockerfile that is checked in is the one compiled today; `make dockerfiles` rewrites them."""
    kept = dockerfiles.DOCKERFILES / f"{path.stem}.Dockerfile"
    assert kept.read_text(encoding="utf-8") == dockerfiles.text_of(path), "run `make dockerfiles` and look at the diff"


def test_nothing_else_is_there() -> None:
    """Every Dockerfile has its description."""
    assert {path.stem for path in dockerfiles.DOCKERFILES.glob("*.Dockerfile")} == NAMES


def test_the_usual_frameworks_are_covered() -> None:
    """Each framework has a description to start from."""
    wanted = {"base", "sklearn", "torch-cpu", "torch-cuda", "jax-cpu", "jax-cuda", "keras-jax", "tensorflow"}
    assert wanted | {"huggingface", "from-dockerfile"} <= NAMES


@pytest.mark.parametrize("name", ["torch-cpu", "torch-cuda", "jax-cpu", "jax-cuda", "keras-jax", "tensorflow"])
def test_frameworks_have_a_layer_of_their_own(name: str) -> None:
    """What is large is installed apart from the rest, which changes more often."""
    text = dockerfiles.text_of(dockerfiles.IMAGES / f"{name}.toml")
    assert text.index("source=requirements/framework,") < text.index("source=requirements/light,")


def test_the_machine_does_not_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the site's base nor the working directory changes a Dockerfile."""
    monkeypatch.setenv("SKYWARD_BASE", "registry.example/other:1")
    monkeypatch.chdir(tmp_path)
    for path in PATHS:
        text = dockerfiles.text_of(path)
        assert "registry.example" not in text
        assert str(dockerfiles.ROOT) not in text
