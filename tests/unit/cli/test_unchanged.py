"""Builds that have nothing to do, told again from a record: as long as nothing has changed, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skyward.build.contents import note_content
from tests.unit.cli.conftest import Skyward
from tests.unit.engine.fake import FakeEngine

RUN = "import sys\nfrom skyward.cli.main import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
LOOK = "import sys\nfrom skyward.cli import unchanged\nprint(unchanged.told_again(sys.argv[1:]))"
SCRIPT = """
import skyward as sky
from config import COMMANDS
with sky.ComputePool(image=sky.Image(run=COMMANDS)): ...
"""
WORDS = ("build", "image.toml", "train.py")
HEAVY = {"click", "hashlib", "json", "skyward.build", "skyward.engine", "socket"}


def _python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What an interpreter of its own prints."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def _is_told_again() -> bool:
    return _python(LOOK, *WORDS).stdout.endswith("True\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an image in TOML, and one in a script with a file beside it."""
    folder = tmp_path / "work" / "inner"
    folder.mkdir(parents=True)
    (folder / "image.toml").write_text('run = ["make it"]\n')
    (folder / "train.py").write_text(SCRIPT)
    (folder / "config.py").write_text("COMMANDS = ['one']\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("A_TOKEN", "hunter2")
    for name in ("DOCKER_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def tags(skyward: Skyward, engine: FakeEngine, folder: Path) -> list[str]:
    """The tags of the two images, which exist; a run has recorded that."""
    found = [line.split()[0] for line in skyward(*WORDS, "--check")[1].splitlines()]
    for tag in found:
        engine.add(tag)
        note_content(tag, "", f"sha256:{tag}")
    assert skyward(*WORDS)[0] == 0
    time.sleep(0.06)  # a run records nothing that has only just been changed
    assert set(_python(RUN, *WORDS).stderr.split()) > HEAVY
    engine.requests.clear()
    return found


def test_it_is_told_again_after_one_question(engine: FakeEngine, tags: list[str]) -> None:
    """In the same words, with nothing loaded that builds; the images are marked as used."""
    used = Path(os.environ["XDG_CACHE_HOME"]) / "skyward" / "used" / tags[1].rpartition(":")[2]
    os.utime(used, (1, 1))

    done = _python(RUN, *WORDS)

    assert not HEAVY & set(done.stderr.split())
    assert len(engine.requests) == 1
    assert used.stat().st_mtime > 1
    assert done.stdout == "".join(
        f"{tag}  {name}: exists\n  id      sha256:{tag}\n  size    1 kB\n"
        for tag, name in zip(tags, ("image.toml", "train.py:train"), strict=True)
    )
    assert "click" in _python(RUN, *WORDS, "--check").stderr.split()  # what is asked otherwise is answered anew


def test_nothing_of_the_environment_is_in_a_record(tags: list[str]) -> None:
    """It may hold secrets."""
    (file,) = _records()
    assert tags[0].encode() in file.read_bytes()
    assert b"hunter2" not in file.read_bytes()


def test_a_record_that_is_broken_is_none(tags: list[str]) -> None:
    """Half written, or of another version."""
    (file,) = _records()
    file.write_bytes(file.read_bytes()[:100])

    assert not _is_told_again()
    assert _python(RUN, *WORDS).stdout.count("exists") == len(tags)


def test_what_an_engine_has_decides(engine: FakeEngine, tags: list[str]) -> None:
    """Another base, another image under the tag, none, an engine that is gone."""
    for tag in ("base:1", tags[0]):
        known = engine.images.pop(tag)
        assert not _is_told_again()
        engine.images[tag] = known | {"Id": "sha256:other"}
        assert not _is_told_again()
        engine.images[tag] = known
        engine.images = dict(sorted(engine.images.items(), key=lambda pair: ["base:1", *tags].index(pair[0])))
        assert _is_told_again()
    Path(engine.url.removeprefix("unix://")).unlink()
    assert not _is_told_again()


def test_settings_decide(monkeypatch: pytest.MonkeyPatch, folder: Path, tags: list[str]) -> None:
    """Files that were not there, and the environment."""
    assert tags
    homes = (".config/uv/uv.toml", ".config/pip/pip.conf", ".pip/pip.conf")
    for file in (folder.parent / "pyproject.toml", *(Path.home() / name for name in homes)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        assert not _is_told_again()
        file.unlink()
        assert _is_told_again()
    monkeypatch.setenv("SKYWARD_BASE", "base:2")
    assert not _is_told_again()


def _rewritten(file: Path, text: str) -> None:
    """Other content of the same length, with the time of the last change put back."""
    before = file.stat()
    assert len(text) == before.st_size
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", ["file", "file beside", "package beside", "known contents"])
def test_files_decide(folder: Path, tags: list[str], change: str) -> None:
    """Their content, even with the old time put back; what comes before them; what this user's images are."""
    if change == "file":
        _rewritten(folder / "image.toml", 'run = ["make IT"]\n')
    elif change == "file beside":
        _rewritten(folder / "config.py", "COMMANDS = ['two']\n")
    elif change == "package beside":
        (folder / "config").mkdir()
        (folder / "config" / "__init__.py").write_text("COMMANDS = ['three']\n")
    else:
        tag = tags[0].rpartition(":")[2]
        (Path(os.environ["XDG_CACHE_HOME"]) / "skyward" / "contents" / f"{tag}.json").unlink()

    assert not _is_told_again()


def _records() -> list[Path]:
    return [*(Path(os.environ["XDG_CACHE_HOME"]) / "skyward" / "unchanged").iterdir()]
