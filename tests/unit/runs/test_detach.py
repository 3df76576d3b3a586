"""What a detached run takes along, and what is known of its pools before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward as sky
from skyward.builder.sources.declared import Declared
from skyward.delivery.deliver import Prepared, description, prepared_image, write_prepared
from skyward.errors import ConfigError
from skyward.model.spec import ClusterSpec
from skyward.runs.container import Pack, pack
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


def packed(program: str, *arguments: str, is_module: bool = False, includes: str = "") -> Pack:
    """What a program takes along."""
    image = sky.Image(includes=includes.split())
    declared = Declared(name="main", where="program.py, line 2", root=Path.cwd(), image=image)
    return pack(new_run(program, arguments, is_module=is_module), [declared])


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

    found = packed("jobs/train.py", "--epochs", "3")

    assert found.words == ("jobs/train.py", "--epochs", "3")
    assert sorted(found.files) == [
        "jobs/layers/__init__.py",
        "jobs/layers/dense.py",
        "jobs/model.py",
        "jobs/tools/clean.py",
        "jobs/train.py",
    ]


def test_a_module_is_packed_with_its_package() -> None:
    """It is started by its name, from the directory above the package."""
    files({"package/__init__.py": "", "package/train.py": "from . import data\n", "package/data.py": ""})

    found = packed("package.train", is_module=True)

    assert found.words == ("-m", "package.train")
    assert sorted(found.files) == ["package/__init__.py", "package/data.py", "package/train.py"]


def test_included_files_come_along(work: Path) -> None:
    """By their paths below the working directory; what lies elsewhere is refused with the image's line."""
    files({"program.py": ""})
    Path("conf").mkdir()
    Path("conf/a.yaml").write_text("a: 1\n")
    Path("conf/tool.sh").write_text("exit 3\n")
    Path("conf/tool.sh").chmod(0o755)
    assert packed("program.py", includes="conf").files["conf/a.yaml"] == b"a: 1\n"
    assert packed("program.py", includes="conf").programs == {"conf/tool.sh"}

    (work.parent / "far.txt").write_text("far")
    with pytest.raises(ConfigError, match=r"program\.py, line 2: .* names \.\./far\.txt, which is not below"):
        packed("program.py", includes="../far.txt")


def test_a_pack_is_for_its_user_alone(tmp_path: Path) -> None:
    """Folders and files are written so that nobody else can read them; programs may be executed."""
    Pack({"a/b.py": b"1", "a/tool": b"2"}, (), frozenset({"a/tool"})).write(tmp_path / "program")

    assert [(tmp_path / "program/a" / name).stat().st_mode & 0o777 for name in ("b.py", "tool")] == [0o600, 0o700]
    assert (tmp_path / "program/a/b.py").read_bytes() == b"1"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "program").rglob("*"))


def test_a_driver_finds_images_by_their_descriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fields and target mean the same image, whoever asked for a line; another of either does not."""
    spec, other = ClusterSpec(python="3.11"), ClusterSpec(python="3.12")
    image = sky.Image(pip=["numpy"], env={"A": "1", "B": "2"})
    same = sky.Image(env={"B": "2", "A": "1"}).pip_install("numpy")
    write_prepared(tmp_path, {description(image, spec): Prepared(tag="skyward:x", user="app", contents=("sha256:1",))})

    assert prepared_image(same, spec) is None  # outside of the run
    monkeypatch.setenv("SKYWARD_RUN", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    assert prepared_image(same, spec) == Prepared(tag="skyward:x", user="app", contents=("sha256:1",))
    assert prepared_image(same, other) is None
    assert prepared_image(same.pip_install("torch"), spec) is None
