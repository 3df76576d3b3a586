"""What source packages are built with: read from them, locked, kept. The real uv on folders of small packages."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from skyward.builder.packages.lock import Request, lock_requirements
from skyward.builder.packages.metadata import BuildSystem, build_system, source_texts
from skyward.errors import ImageError
from skyward.image import Lock
from skyward.model.image import Image, PipIndex
from tests.unit.builder.wheels import make_sdist, make_wheel

INDEX = "https://download.pytorch.org/whl/cpu"
SYSTEM = '[build-system]\nrequires = ["backend>=1"]\nbuild-backend = "backend"\n'


def _lock(*pip: str, image: Image | None = None, projects: tuple[tuple[str, BuildSystem], ...] = ()) -> Lock:
    request = Request(image=image or Image(pip=pip), python="3.11", platform="linux/amd64", projects=projects)
    return lock_requirements(request)


def _built_with(lock: Lock) -> dict[str, list[str]]:
    return {
        package.name: [each.pin for each in package.build] for package in lock.packages if package.build is not None
    }


def test_what_a_build_takes_is_locked(wheels: Path) -> None:
    """What pyproject.toml requires, and what that needs, by hash; a later version changes nothing until an upgrade."""
    backend = make_wheel(wheels, "backend", "1.0", "helper")
    make_wheel(wheels, "helper", "1.0")
    make_sdist(wheels, "source", "1.0", {"pyproject.toml": SYSTEM})
    lock = _lock("source")
    assert _built_with(lock) == {"source": ["backend==1.0", "helper==1.0"]}
    (package,) = lock.packages
    assert package.build is not None
    assert package.build[0].hashes == ("sha256:" + hashlib.sha256(backend.read_bytes()).hexdigest(),)
    make_wheel(wheels, "backend", "2.0")
    assert _lock("source") == lock


def test_a_legacy_package_takes_setuptools(wheels: Path) -> None:
    """Without pyproject.toml setuptools is implied; what setup.py and setup.cfg write out comes with it."""
    for name in ("setuptools", "wheel", "cffi", "pbr"):
        make_wheel(wheels, name, "99.0")
    cfg = "[options]\nsetup_requires =\n    pbr\n"
    setup = 'from setuptools import setup\nsetup(setup_requires=["cffi>=1"])\n'
    make_sdist(wheels, "source", "1.0", {"setup.py": setup, "setup.cfg": cfg})
    assert _built_with(_lock("source")) == {"source": ["cffi==99.0", "pbr==99.0", "setuptools==99.0", "wheel==99.0"]}


def test_what_a_backend_may_ask_for_need_not_be_there(wheels: Path) -> None:
    """An index without cmake is no reason to refuse a package that uses the cmake of the image."""
    make_wheel(wheels, "scikit_build_core", "1.0")
    text = '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'
    make_sdist(wheels, "source", "1.0", {"pyproject.toml": text})
    assert _built_with(_lock("source")) == {"source": ["scikit-build-core==1.0"]}
    make_wheel(wheels, "cmake", "4.0")
    make_wheel(wheels, "ninja", "1.0")
    make_sdist(wheels, "source", "2.0", {"pyproject.toml": text})
    assert _built_with(_lock("source>=2")) == {"source": ["cmake==4.0", "ninja==1.0", "scikit-build-core==1.0"]}


def test_what_is_itself_built_for_a_build(wheels: Path) -> None:
    """A requirement of a build that has no wheel brings what its own build takes."""
    make_wheel(wheels, "backend", "1.0")
    make_wheel(wheels, "deep", "1.0")
    make_sdist(
        wheels, "middle", "1.0", {"pyproject.toml": '[build-system]\nrequires = ["deep"]\nbuild-backend = "deep"'}
    )
    make_sdist(wheels, "source", "1.0", {"pyproject.toml": SYSTEM.replace("]\nb", ', "middle"]\nb')})
    assert _built_with(_lock("source")) == {"source": ["backend==1.0", "deep==1.0", "middle==1.0"]}


def test_two_packages_may_take_versions_that_exclude_each_other(wheels: Path) -> None:
    """Each is built by itself."""
    make_wheel(wheels, "backend", "1.0")
    make_wheel(wheels, "backend", "2.0")
    make_sdist(wheels, "old", "1.0", {"pyproject.toml": SYSTEM.replace(">=1", "<2")})
    make_sdist(wheels, "new", "1.0", {"pyproject.toml": SYSTEM.replace(">=1", ">=2")})
    assert _built_with(_lock("old", "new")) == {"new": ["backend==2.0"], "old": ["backend==1.0"]}


def test_the_image_names_the_index_of_what_builds_take(
    wheels: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes from one index only comes from there for a build, too."""
    make_wheel(wheels, "backend", "99.0")
    make_wheel(wheels.parent / "own", "backend", "1.0")
    make_sdist(wheels, "source", "1.0", {"pyproject.toml": SYSTEM})
    monkeypatch.setenv("SKYWARD_INDEXES", f'{{"{INDEX}": "{wheels.parent / "own"}"}}')
    monkeypatch.setattr("skyward.builder.site.indexes._UV_SYSTEM", Path("/nowhere"))
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {wheels}\n")
    lock = _lock(image=Image(pip=["source"], pip_indexes=[PipIndex(INDEX, ["backend"])]))
    assert _built_with(lock) == {"source": ["backend==1.0"]}
    assert lock.packages[0].install.build == ((INDEX, "backend"),)


def test_projects_of_this_machine(wheels: Path) -> None:
    """What a local project is built with is locked also where the image has no other requirement."""
    make_wheel(wheels, "backend", "1.0")
    projects = (("mine", build_system("mine", {"pyproject.toml": SYSTEM})),)
    lock = _lock(image=Image(pip=["./mine"]), projects=projects)
    assert [(name, [each.pin for each in build]) for name, build in lock.projects] == [("mine", ["backend==1.0"])]
    assert _lock(image=Image(pip=["./mine"]), projects=projects) == lock
    other = (("mine", build_system("mine", {"pyproject.toml": SYSTEM.replace("1", "99")})),)
    with pytest.raises(ImageError, match=r"What 'mine' takes to be built cannot be had: backend>=99\."):
        _lock(image=Image(pip=["./mine"]), projects=other)


def test_a_commit_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are read at that commit, which no branch need have, below the directory that the requirement names."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@a.example")

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=tmp_path / "a", check=True, capture_output=True, text=True).stdout

    (tmp_path / "a/below").mkdir(parents=True)
    (tmp_path / "a/below/pyproject.toml").write_text(SYSTEM)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "1")
    commit = git("rev-parse", "HEAD").strip()
    git("rm", "-q", "below/pyproject.toml")
    git("commit", "-q", "--amend", "-m", "2", "--allow-empty")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    vcs = {"type": "git", "url": f"file://{tmp_path}/a", "commit-id": commit, "subdirectory": "below"}
    (tmp_path / "place").mkdir()
    assert source_texts("own", {"vcs": vcs}, tmp_path / "place", os.environ) == {"pyproject.toml": SYSTEM}
    gone = {"vcs": vcs | {"commit-id": "c0ffee" * 6 + "c0ff"}}
    with pytest.raises(ImageError, match=r"The repository of 'other' cannot be read"):
        source_texts("other", gone, tmp_path / "place", os.environ)


def test_a_source_that_is_not_what_was_locked(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read."""
    make_wheel(wheels, "backend", "1.0")
    make_sdist(wheels, "source", "1.0", {"pyproject.toml": SYSTEM})
    monkeypatch.setattr(
        "skyward.builder.packages.metadata._with_login", lambda url, _: url.replace("source-1.0", "other-1.0")
    )
    make_sdist(wheels, "other", "1.0", {"pyproject.toml": SYSTEM})
    with pytest.raises(ImageError, match=r"source of 'source' is not the file that its index names"):
        _lock("source")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, BuildSystem(("setuptools>=40.8.0",), ("wheel",))),
        ({"pyproject.toml": "[project]\nname = 'a'"}, BuildSystem(("setuptools>=40.8.0",), ("wheel",))),
        ({"pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'own'"}, BuildSystem()),
        ({"setup.py": "print 'of Python 2'"}, BuildSystem(("setuptools>=40.8.0",), ("wheel",))),
        ({"setup.py": "setup(setup_requires='a\\nb' if 1 else [])"}, BuildSystem(("setuptools>=40.8.0",), ("wheel",))),
        ({"setup.py": "setup(setup_requires='a\\n b')"}, BuildSystem(("setuptools>=40.8.0", "a", "b"), ("wheel",))),
        ({"setup.cfg": "[options"}, BuildSystem(("setuptools>=40.8.0",), ("wheel",))),
    ],
)
def test_what_files_say(files: dict[str, str], expected: BuildSystem) -> None:
    """By the rules of PEP 517 and 518; what cannot be read is left to the build."""
    assert build_system("a", files) == expected


def test_a_build_system_that_is_none() -> None:
    """The error names the package, and what to do."""
    with pytest.raises(ImageError, match=r"'a' takes to be built cannot be read .* Choose a version that has a wheel"):
        build_system("a", {"pyproject.toml": "build-system = 3"})
