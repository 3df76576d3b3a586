"""Projects with a lock, as uv makes it from a folder of small wheels; nothing asks the network."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import uv

from skyward.builder.packages.lock import lock_requirements
from skyward.builder.packages.requirements import resolve_files
from skyward.errors import ConfigError, ImageError
from skyward.model.image import Image, PipIndex
from tests.unit.builder.wheels import make_index, make_wheel

APP = """
[project]
name = "app"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["top", "lib", "far; sys_platform == 'win32'", "native"]
[project.optional-dependencies]
gpu = ["fast"]
[dependency-groups]
dev = ["tester"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.uv]
constraint-dependencies = ["leaf<2"]
[tool.uv.sources]
lib = { workspace = true }
[tool.uv.workspace]
members = ["libs/*"]
"""
LIB = """
[project]
name = "lib"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["leaf"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""


@pytest.fixture
def project(wheels: Path) -> Path:
    """A workspace of two projects that is locked, and the folder of wheels as this machine's find-links."""
    for name, version, needs in (
        ("leaf", "1.0", ()),
        ("leaf", "2.0", ()),
        ("top", "1.0", ("leaf",)),
        ("far", "1.0", ()),
        ("fast", "3.0", ("leaf",)),
        ("tester", "1.0", ()),
        ("other", "1.0", ("leaf",)),
        ("hatchling", "1.0", ()),
    ):
        make_wheel(wheels, name, version, *needs)
    for tag in ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "win_amd64"):
        make_wheel(wheels, "native", "1.0", tag=f"cp311-cp311-{tag}")
    root = wheels.parent / "work"
    (root / "libs/lib").mkdir(parents=True)
    (root / "pyproject.toml").write_text(APP)
    (root / "libs/lib/pyproject.toml").write_text(LIB)
    (root / "app.py").write_text("")
    (root / "libs/lib/lib.py").write_text("")
    lock(root, wheels)
    return root


def lock(folder: Path, wheels: Path) -> None:
    """What `uv lock` does, with the folder of wheels as its only source."""
    words = [uv.find_uv_bin(), "lock", "--quiet", "--no-index", "--find-links", str(wheels)]
    subprocess.run(words, cwd=folder, check=True)


def _pins(image: Image, root: Path) -> list[str]:
    request = resolve_files(image, root, python="3.11", platform="linux/amd64")
    return [package.pin for package in lock_requirements(request).packages]


def test_exactly_as_the_lock_has_it(project: Path) -> None:
    """Constraints, markers and members as uv.lock has them."""
    image = Image.from_project(".", extras=["gpu"])
    resolved = resolve_files(image, project, python="3.11", platform="linux/amd64")
    packages = {each.name: each for each in lock_requirements(resolved).packages}
    assert [each.pin for each in packages.values()] == ["fast==3.0", "leaf==1.0", "native==1.0", "top==1.0"]
    assert len(packages["native"].hashes) == 1
    assert [(each.name, each.is_project) for each in resolved.packages] == [("app", True), ("lib", False)]
    assert {".", "./libs/lib"} <= set(resolved.image.pip)
    other = lock_requirements(resolve_files(image, project, python="3.11", platform="linux/arm64"))
    assert other.packages[2].hashes != packages["native"].hashes


def test_what_is_chosen(project: Path) -> None:
    """Groups only where they are named; `pip=["."]`, a project file and groups mean what the lock has, too."""
    own, whole = ["leaf==1.0"], ["leaf==1.0", "native==1.0", "top==1.0"]
    for image, pins in (
        (Image.from_project("."), whole),
        (Image.from_project(".", groups=["dev"]), [*whole[:2], "tester==1.0", "top==1.0"]),
        (Image.from_project("libs/lib"), own),
        (Image.from_project(".", package="lib"), own),
        (Image(pip=[".[gpu]"]), ["fast==3.0", *whole]),
        (Image(requirements=["pyproject.toml"]), whole),
        (Image(groups=["dev"]), ["tester==1.0"]),
        (Image(groups=["gpu"]), ["fast==3.0", *whole]),
    ):
        assert _pins(image, project) == pins
    resolved = resolve_files(Image.from_project(".", package="lib"), project, python="3.11")
    assert [each.name for each in resolved.packages if each.is_project] == ["lib"]


def test_a_lock_that_cannot_be_used(project: Path) -> None:
    """It is older than its project, for another Python, missing, or only another tool reads it."""
    text = (project / "pyproject.toml").read_text()
    for changed, message in (
        (text.replace('"native"]', '"native", "tester"]'), r"uv.lock for this image.* run `uv lock`"),
        (text.replace(">=3.11", ">=3.12"), r"incompatible with the project's Python requirement: `>=3.12`"),
    ):
        (project / "pyproject.toml").write_text(changed)
        with pytest.raises(ConfigError, match=rf"(?s){message}"):
            resolve_files(Image.from_project(), project, python="3.11")
    (project / "uv.lock").unlink()
    with pytest.raises(ConfigError, match=rf"has no lock .*`uv lock` in {project}"):
        resolve_files(Image.from_project(), project)
    (project / "poetry.lock").write_text("")
    with pytest.raises(ConfigError, match=r"`poetry export -f requirements.txt"):
        resolve_files(Image.from_project(), project)


def _lock_with(folder: Path, index: str) -> None:
    (folder / "uv.lock").unlink(missing_ok=True)
    environment = {**os.environ, "UV_DEFAULT_INDEX": index}
    subprocess.run([uv.find_uv_bin(), "lock", "--quiet"], cwd=folder, env=environment, check=True)


@pytest.fixture
def served(wheels: Path) -> Iterator[str]:
    """The folder above the wheels, over HTTP: locks have no `file:` URL of an index."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(wheels.parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_lock_that_was_made_with_another_mirror(
    project: Path, wheels: Path, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as fresh as before on a machine whose settings name another index; nothing of its address remains."""
    make_index(wheels)
    _lock_with(project, f"{served}/wheels")
    (tmp_path / "config/uv").mkdir(parents=True)
    (tmp_path / "config/uv/uv.toml").write_text('[[index]]\nurl = "http://127.0.0.1:9/simple"\ndefault = true\n')
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        resolved = resolve_files(Image.from_project(), project, python="3.11", platform="linux/amd64")
    assert resolved.image.pip_indexes == ()
    assert "127.0.0.1" not in repr(resolved.rules.pinned)


def test_an_index_that_the_project_names(project: Path, wheels: Path, served: str) -> None:
    """What a project takes from an index of its own comes from there and nowhere else."""
    make_wheel(wheels.parent / "own", "top", "1.0", "leaf")
    for folder in (wheels, wheels.parent / "own"):
        make_index(folder)
    url = f"{served}/own"
    index = f'[[tool.uv.index]]\nname = "own"\nurl = "{url}"\nexplicit = true\n[tool.uv.sources]\n'
    (project / "pyproject.toml").write_text(APP.replace("[tool.uv.sources]\n", f'{index}top = {{ index = "own" }}\n'))
    _lock_with(project, f"{served}/wheels")
    resolved = resolve_files(Image.from_project(), project, python="3.11")
    assert resolved.image.pip_indexes == (PipIndex(url, ["top"]),)
    assert {each.name: each.index for each in resolved.rules.pinned}["top"] == url


def test_packages_beside_a_project(project: Path, wheels: Path) -> None:
    """What a plugin or the user adds is resolved with the project's versions; a contradiction is an error."""
    make_wheel(wheels, "picky", "1.0", "leaf>=2")
    image = Image.from_project().pip_install("other", "leaf>=1")
    assert _pins(image, project) == ["leaf==1.0", "native==1.0", "other==1.0", "top==1.0"]
    (project / "c.txt").write_text("leaf>=2\n")
    for added in ("leaf>=2", "picky", "-c c.txt"):
        with pytest.raises(ImageError, match=r"leaf==1.0"):
            _pins(Image.from_project().pip_install(added), project)
