"""What a script changes after it has bound it, and how it may come to its pools: as a run of it would find, or refused.

Each script is run, too, with a `ComputePool` that only notes its image. What is told without a run must be the same.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any, Self

import pytest

import skyward
from skyward.builder.sources.script import pools_in_script
from skyward.errors import ConfigError
from skyward.model.image import Image

HEAD = "import os, sys, skyward as sky\n"
POOL = "with sky.ComputePool(image=sky.Image(pip=P)): ...\n"


def _scripts(name: str) -> dict[str, str]:
    """The scripts of a file by their titles."""
    parts = (Path(__file__).parent / name).read_text(encoding="utf-8").split("\n### ")[1:]
    return {title: f"{HEAD}{text}\n" for title, _, text in (part.partition("\n") for part in parts)}


FOLLOWED = _scripts("scripts_followed.txt")
REFUSED = _scripts("scripts_refused.txt")


class _Noted:
    """A pool that is none."""

    images: list[Image] = []  # noqa: RUF012 - of the class, and empty for each test

    def __init__(self, *_: Any, image: Image | None = None, **__: Any) -> None:
        self.images.append(image or Image())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a script; the images of its pools."""
    monkeypatch.setattr(skyward, "ComputePool", _Noted)
    monkeypatch.setattr(skyward, "Image", Image)
    monkeypatch.setattr(skyward.pool, "_make", _Noted)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    _Noted.images = []

    def made(text: str) -> list[Image]:
        with contextlib.redirect_stdout(io.StringIO()):
            file = str(tmp_path / "train.py")
            exec(compile(text, file, "exec"), {"__name__": "__main__", "__file__": file})
        return _Noted.images

    return made


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_told_is_what_a_run_makes(tmp_path: Path, run: Any, name: str) -> None:
    """The images, in their order, are those of a run."""
    text = FOLLOWED[name]
    (tmp_path / "train.py").write_text(text)

    told = [each.image for each in pools_in_script(tmp_path / "train.py")]

    assert told == run(text)
    assert told


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_a_run_can_tell_is_refused(tmp_path: Path, name: str) -> None:
    """The message names the line that it is about."""
    (tmp_path / "train.py").write_text(REFUSED[name])
    lines = [number for number, line in enumerate(REFUSED[name].splitlines(), 1) if line.endswith("# <-")]

    with pytest.raises(ConfigError) as caught:
        pools_in_script(tmp_path / "train.py")

    assert lines
    assert all(f"line {number}" in str(caught.value) for number in lines)


def test_a_function_that_nobody_calls_changes_nothing(tmp_path: Path) -> None:
    """Its pools are found all the same."""
    text = HEAD + "P = ['a']\ndef add():\n    P.append('b')\n    " + POOL + "def other():\n    " + POOL
    (tmp_path / "train.py").write_text(text)

    assert [each.image.pip for each in pools_in_script(tmp_path / "train.py")] == [("a", "b"), ("a",)]
