"""What source packages are built with: read from them, locked, kept. The real uv on folders of small packages."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from packaging.pylock import Pylock

from skyward.builder.packages.local import LocalPackage, build_requirements, local_package
from skyward.builder.packages.lock import Request, lock_requirements
from skyward.builder.packages.sources import source_build
from skyward.errors import ImageError
from skyward.image import Lock
from skyward.model.image import Image, PipIndex
from tests.unit.builder.wheels import make_sdist, make_wheel

INDEX = "https://download.pytorch.org/whl/cpu"
SYSTEM = '[build-system]\nrequires = ["backend>=1"]\nbuild-backend = "backend"\n'


def _lock(*pip: str, image: Image | None = None, packages: tuple[LocalPackage, ...] = ()) -> Lock:
    request = Request(image=image or Image(pip=pip), python="3.11", platform="linux/amd64", packages=packages)
    return lock_requirements(request)


def _built_with(lock: Lock) -> dict[str, list[str]]:
    return {
        package.name: [each.pin for each in package.build] for package in lock.packages if package.build is not None
    }


def test_what_a_build_requires_is_locked(wheels: Path) -> None:
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


def test_what_a_backend_requests_is_locked(wheels: Path) -> None:
    """Backends request programs that the machine lacks; nothing but the lock's packages is installed in a build."""
    for name in ("scikit_build_core", "cmake", "ninja"):
        make_wheel(wheels, name, "1.0")
    text = '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'
    make_sdist(wheels, "source", "1.0", {"pyproject.toml": text})
    assert _built_with(_lock("source")) == {"source": ["cmake==1.0", "ninja==1.0", "scikit-build-core==1.0"]}


def test_each_package_is_built_by_itself(wheels: Path) -> None:
    """Two may take versions that exclude each other; what is itself built for a build brings its requirements."""
    make_wheel(wheels, "backend", "1.0")
    make_wheel(wheels, "backend", "2.0")
    make_wheel(wheels, "deep", "1.0")
    middle = '[build-system]\nrequires = ["deep"]\nbuild-backend = "deep"'
    make_sdist(wheels, "middle", "1.0", {"pyproject.toml": middle})
    make_sdist(wheels, "old", "1.0", {"pyproject.toml": SYSTEM.replace(">=1", "<2")})
    make_sdist(wheels, "new", "1.0", {"pyproject.toml": SYSTEM.replace("]\nb", ', "middle"]\nb')})
    expected = {"new": ["backend==2.0", "deep==1.0", "middle==1.0"], "old": ["backend==1.0"]}
    assert _built_with(_lock("old", "new")) == expected


def test_the_image_names_the_index_of_build_requirements(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """What a local project requires and is built with is locked; the project itself comes from its files."""
    make_wheel(wheels, "backend", "1.0")
    make_wheel(wheels, "leaf", "1.0")
    text = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["leaf"]\n'
    (wheels.parent / "mine").mkdir()
    (wheels.parent / "mine/pyproject.toml").write_text(SYSTEM + text)
    package = local_package("./mine", wheels.parent / "mine")
    lock = _lock(image=Image(pip=["./mine"]), packages=(package,))
    assert [each.pin for each in lock.packages] == ["leaf==1.0"]
    assert [(name, [each.pin for each in build]) for name, build in lock.projects] == [("mine", ["backend==1.0"])]
    (wheels.parent / "mine/pyproject.toml").write_text(SYSTEM.replace("1", "99") + text)
    package = local_package("./mine", wheels.parent / "mine")
    with pytest.raises(ImageError, match=r"Build requirements of 'mine' are unavailable: backend>=99\."):
        _lock(image=Image(pip=["./mine"]), packages=(package,))


def test_a_commit_of_a_repository(tmp_path: Path) -> None:
    """Its file is read at that commit, below the directory that the requirement names."""

    def git(*words: str) -> str:
        words = ("-c", "user.name=a", "-c", "user.email=a@a.example", *words)
        return subprocess.run(["git", *words], cwd=tmp_path / "a", check=True, capture_output=True, text=True).stdout

    (tmp_path / "a/below").mkdir(parents=True)
    (tmp_path / "a/below/pyproject.toml").write_text(SYSTEM)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "1")
    vcs = {"type": "git", "url": f"file://{tmp_path}/a", "commit-id": git("rev-parse", "HEAD").strip()}
    for below, wanted in (("below", ("backend>=1",)), ("elsewhere", build_requirements({}))):
        packages = [{"name": "own", "vcs": {**vcs, "subdirectory": below}}]
        document = Pylock.from_dict({"lock-version": "1.0", "created-by": "test", "packages": packages})
        (tmp_path / below).mkdir()
        assert source_build(document.packages[0], tmp_path / below, os.environ) == wanted


def test_a_source_that_is_not_what_was_locked(tmp_path: Path) -> None:
    """It is not read."""
    file = make_sdist(tmp_path, "source", "1.0", {"pyproject.toml": SYSTEM})
    sdist = {"url": file.as_uri(), "hashes": {"sha256": "0" * 64}}
    packages = [{"name": "source", "version": "1.0", "sdist": sdist}]
    document = Pylock.from_dict({"lock-version": "1.0", "created-by": "test", "packages": packages})
    with pytest.raises(ImageError, match=r"'source' does not have the SHA-256"):
        source_build(document.packages[0], tmp_path, os.environ)
