"""What a detached run takes along, and what is known of its pools before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import skyward as sky
from skyward.builder.sources.declared import Declared
from skyward.builder.store import known_contents, note_content
from skyward.delivery.deliver import Delivered, description, prepared_image, write_prepared
from skyward.errors import ConfigError
from skyward.model.spec import ClusterSpec
from skyward.runs.container import pack
from skyward.runs.driver import new_run


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with records of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def files(texts: dict[str, str]) -> None:
    """Files of the working directory."""
    for name, text in texts.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def packed(*words: str, is_module: bool = False, includes: str = "") -> tuple[list[str], list[str]]:
    """The arguments of Python and the files with which a program is started elsewhere."""
    image = sky.Image(includes=includes.split())
    declared = Declared(name="main", where="program.py, line 2", root=Path.cwd(), image=image)
    with TemporaryDirectory() as folder:
        target = Path(folder, "program")
        started = pack(new_run(words[0], words[1:], is_module=is_module), declared, target)
        found = [path for path in target.rglob("*") if path.is_file()]
        assert all(path.stat().st_mode & 0o077 == 0 for path in target.rglob("*"))
        marks = [f"{path.relative_to(target)}{'*' * bool(path.stat().st_mode & 0o100)}" for path in found]
        return list(started), sorted(marks)


def test_a_script_takes_its_modules_along_at_their_places() -> None:
    """Packages, modules that functions import, modules of modules; nothing that is installed or not used."""
    files(
        {
            "jobs/train.py": "import numpy, model\ndef late():\n    from tools import clean\n",
            "jobs/model.py": "import layers.dense\n",
            "jobs/layers/__init__.py": "",
            "jobs/layers/dense.py": "import click\n",
            "jobs/tools/clean.py": "",
            "jobs/unused.py": "",
        }
    )
    names = ("layers/__init__.py", "layers/dense.py", "model.py", "tools/clean.py", "train.py")
    assert packed("jobs/train.py", "--epochs", "3") == (
        ["jobs/train.py", "--epochs", "3"],
        [f"jobs/{name}" for name in names],
    )


def test_a_module_is_packed_with_its_package() -> None:
    """It is started by its name, from the directory above the package."""
    files({"package/__init__.py": "", "package/train.py": "from . import data\n", "package/data.py": ""})
    names = ("__init__.py", "data.py", "train.py")
    assert packed("package.train", is_module=True) == (["-m", "package.train"], [f"package/{name}" for name in names])


def test_included_files_come_along(work: Path) -> None:
    """By their paths below the working directory; what lies elsewhere is refused with the image's line."""
    files({"program.py": "", "conf/a.yaml": "a: 1\n", "conf/tool.sh": "exit 3\n"})
    Path("conf/tool.sh").chmod(0o755)
    assert packed("program.py", includes="conf")[1] == ["conf/a.yaml", "conf/tool.sh*", "program.py"]

    (work.parent / "far.txt").write_text("far")
    with pytest.raises(ConfigError, match=r"program\.py, line 2: .* names \.\./far\.txt, which is not below"):
        packed("program.py", includes="../far.txt")


def test_a_driver_finds_images_by_their_descriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fields and target mean the same image, whoever asked for a line; another of either does not."""
    spec, other = ClusterSpec(python="3.11"), ClusterSpec(python="3.12")
    image = sky.Image(pip=["numpy"], env={"A": "1", "B": "2"})
    same = sky.Image(env={"B": "2", "A": "1"}).pip_install("numpy")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "client"))
    note_content("skyward:x", "sha256:1")
    made = Delivered(tag="skyward:x", user="app", auth={"password": "canary"})
    write_prepared(tmp_path, {description(image, spec): made})

    assert prepared_image(same, spec) is None  # outside of the run
    monkeypatch.setenv("SKYWARD_RUN", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert prepared_image(same, spec) == replace(made, auth={})
    assert known_contents("skyward:x") == {"sha256:1"}
    assert prepared_image(same, other) is None
    assert prepared_image(same.pip_install("torch"), spec) is None
