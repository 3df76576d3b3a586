"""`skyward image infer`: what a script imports, beside what its images have."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Skyward

SCRIPT = """\
import click
import skyward as sky

image = sky.Image(pip=["click==1.0"])
pool = sky.ComputePool(image=image, plugins=[sky.plugins.joblib()])
"""
VERSION = version("click")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_compared_with_the_images_of_a_program(skyward: Skyward, script: Path) -> None:
    """With what its plugins add; as text and as JSON."""
    status, text, _ = skyward("image", "infer", "train.py", "--image", "train.py")
    assert status == 0
    assert text.splitlines()[:2] == [
        "pool (train.py, pool):",
        f"~ click=={VERSION}  the image has click==1.0; imported in train.py:1",
    ]
    assert "- joblib" in text
    status, text, _ = skyward("image", "infer", "train.py", "--image", "train.py", "--json")
    document = json.loads(text)
    assert document["pip"] == [f"click=={VERSION}"]
    (found,) = [package for package in document["packages"] if package["state"] == "change"]
    assert (found["name"], found["version"], found["where"]) == ("click", VERSION, ["train.py:1"])


def test_a_script_is_compared_with_another_image_or_with_none(skyward: Skyward, script: Path) -> None:
    """One in a file; without one everything is to be added, and nothing is run."""
    (script.parent / "own.toml").write_text('pip = ["click"]\n')
    assert "= click" in skyward("image", "infer", "train.py", "--image", "own.toml")[1]
    script.write_text("import click\nraise SystemExit('it was run')")
    assert skyward("image", "infer", "train.py")[1] == f"+ click=={VERSION}  imported in train.py:1\n"


def test_a_script_that_is_not_there(skyward: Skyward) -> None:
    """A sentence."""
    status, text, error = skyward("image", "infer", "nowhere.py")
    assert (status, text) == (2, "")
    assert "nowhere.py cannot be read: No such file or directory." in error
