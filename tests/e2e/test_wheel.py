"""What people install: the source distribution and the wheel, built, looked into, and used from an environment without
this checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

import skyward
from tests.conftest import ROOT

FIVE_LINES = """
import skyward as sky

@sky.compute
def double(x):
    return 2 * x

with sky.ComputePool(nodes=2, display="quiet") as pool:
    print(sky.__file__, double(21) @ pool)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution of a copy: files that other tests make meanwhile end a build."""
    into, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree") / "skyward"
    made = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".engine", ".kube", ".slurm", ".stand", ".*_cache")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=made)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a command of an environment that has the wheel, and of this one the packages that it depends on."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place / "venv"), "platbase": str(place / "venv")}))
    # A folder named in a .pth file is searched, and its own .pth files, such as that of an editable skyward, are not.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(place / "venv/bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], check=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        command = [str(place / "venv/bin" / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every file of the package, those that are no Python too; no test, script or example."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kept = subprocess.run(["git", "ls-files", "skyward"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    about = {name for name in names if PurePosixPath(name).parts[0] == f"skyward-{skyward.__version__}.dist-info"}
    assert {name for name in kept.split() if (ROOT / name).exists()} <= names - about
    assert {PurePosixPath(name).parts[0] for name in names - about} == {"skyward"}
    assert {"skyward/py.typed", "skyward/__init__.pyi", "skyward/image/scripts/step.sh"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_five_lines_run_from_the_wheel(installed: Callable[..., str], tmp_path: Path) -> None:
    """In containers: their image is made of the files that were installed."""
    program = tmp_path / "program.py"
    program.write_text(FIVE_LINES)
    imported, *results = installed("python", str(program)).split(maxsplit=1)
    assert "installed" in imported
    assert not Path(imported).is_relative_to(ROOT)
    assert results == ["[42, 42]\n"]


def test_the_demo_and_the_command_run_from_the_wheel(installed: Callable[..., str], tmp_path: Path) -> None:
    """The program of `make demo`, copied elsewhere, and what `pip install` puts on PATH."""
    demo = shutil.copy(ROOT / "examples/digits.py", tmp_path)
    assert "combined" in installed("python", str(demo), "--provider", "local")
    assert installed("skyward", "--version").split()[-1] == skyward.__version__
