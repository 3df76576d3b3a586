"""Which local files a function needs on a node, and that it runs there with those files alone."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyward
from skyward._pool.code import bundle as code
from skyward._pool.code.bundle import CodeBundle, bundle_paths, local_modules
from skyward._pool.code.identity import code_digest
from skyward._pool.code.reloads import LoadedModules
from skyward.builder.files import included
from skyward.errors import ConfigError, SerializationError

Project = Callable[[dict[str, str]], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Write files into a directory on `sys.path`; what was imported from there is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return tmp_path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def paths(obj: object) -> list[str]:
    return [path for path, _ in local_modules(obj).files]


def test_a_function_of_a_module_brings_its_module(project: Project) -> None:
    """The module a function lives in, and what that imports, at its top or in functions, are sent; packages whole."""
    project(
        {
            "train.py": "import os, json, numpy\nimport settings\nfrom layers import dense\ndef fit(): import late",
            "settings.py": "A = 1",
            "layers/__init__.py": "from . import base\nfrom .base import B",
            "layers/base.py": "B = 1",
            "layers/dense.py": "from layers.base import B",
            "late.py": "try:\n    import optional\nexcept ImportError:\n    pass",
            "optional.py": "",
            "unused.py": "",
            "layers/unused.py": "",
        }
    )
    train = importlib.import_module("train")

    assert paths(train.fit) == [
        "late.py",
        "layers/__init__.py",
        "layers/base.py",
        "layers/dense.py",
        "layers/unused.py",
        "optional.py",
        "settings.py",
        "train.py",
    ]


PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/found_late.py": "import beside",
    "pkg/data/table.csv": "1",
    "pkg/.hidden": "1",
    "pkg/tools/run.sh": "true",
    "beside.py": "",
    # not sent
    ".gitignore": "*.log\ngenerated*\n",
    "pkg/generated_and_unused.py": "",
    "pkg/train.log": "",
    "pkg/.env": "",
    "pkg/robot.json": "-----BEGIN PRIVATE KEY-----",
    "pkg/.hg/x": "",
    "pkg/.cache/x/y": "",
    "pkg/__pycache__/x.pyc": "",
    "pkg/env/pyvenv.cfg": "",
    "pkg/env/lib/x.py": "",
    "other/__init__.py": "",
}
SENT = ["beside.py", *(f"pkg/{name}" for name in (".hidden", "__init__.py", "data/table.csv", "found_late.py"))]


@pytest.mark.parametrize(
    ("files", "uses", "sent"),
    [
        ({}, "import pkg", SENT),
        ({}, "from pkg.found_late import a", SENT),
        ({}, "import pkg as a; import os.path as b", SENT),
        ({}, "from pkg import (  # comment, with comma\n    found_late as a,\n)", SENT),
        ({}, "if True: import \\\n   pkg", SENT),
        ({}, "__import__('pkg.' + 'found_late')", SENT),
        ({"pkg/__init__.py": "from .generated import a"}, "import pkg", None),
        ({"pkg/__init__.py": "from . import generated"}, "import pkg", None),
        # folders without __init__.py: the one that holds what is imported, not all that share its name
        ({"space/one/a.py": "", "space/one/b.csv": "", "space/two/c.py": ""}, "from space.one.a import x", "one"),
        ({"space/one/a.py": "", "space/one/b.csv": "", "space/two/c.py": ""}, "import space.one", "one"),
        ({"space/one/a.py": "", "space/one/b.csv": "", "space/two/c.py": ""}, "import space", "one two"),
        ({"wandb/run/log.txt": ""}, "import wandb", []),
        ({"space/one/a.py": "", "space/one/b.csv": "", "space/two/c.py": ""}, "glob('space/*.py')", "one two"),
        ({}, "open('space' 'other.txt')", []),
    ],
)
def test_a_package_is_sent_whole(project: Project, files: dict[str, str], uses: str, sent: Any) -> None:
    """Modules that are found at run time and data; not what git ignores unless it is imported, caches, credentials."""
    root = project({**PACKAGE, "pkg/generated.py": "", **files, "uses.py": f"def f():\n    {uses}"})
    (root / "pkg/tools/run.sh").chmod(0o755)
    bundle = local_modules(importlib.import_module("uses").f)
    found = [path for path, _ in bundle.files if path != "uses.py"]

    if isinstance(sent, str):
        names = {"one": ["space/one/a.py", "space/one/b.csv"], "two": ["space/two/c.py"]}
        assert found == [path for word in sent.split() for path in names[word]]
    else:
        expected = [*SENT, "pkg/generated.py"] if sent is None else sent
        assert found == (sorted([*expected, "pkg/tools/run.sh"]) if expected else [])
        assert bundle.programs == ({"pkg/tools/run.sh"} if expected else set())


def test_a_loaded_module_is_sent_though_git_ignores_it(project: Project) -> None:
    """However it was imported."""
    project({**PACKAGE, "pkg/generated_at_run_time.py": "def f(): pass"})
    assert "pkg/generated_at_run_time.py" not in paths(importlib.import_module("pkg.found_late"))
    importlib.import_module("pkg.generated_at_run_time")

    assert "pkg/generated_at_run_time.py" in paths(importlib.import_module("pkg"))


def test_what_is_too_large_is_left_out_and_said_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest data files, and modules that no import names."""
    monkeypatch.setattr(code, "MAX_BYTES", 1 << 20)
    sizes = {
        "m.py": 600_000,
        "unused.py": 500_000,
        "a.bin": 700_000,
        "b.bin": 400_000,
        "c.bin": 10_000,
        "d.bin": 300_000,
    }
    project(
        {"pkg/__init__.py": "", ".gitignore": "*.log", **{f"pkg/{name}": "#" * size for name, size in sizes.items()}}
    )
    told: list[str] = []
    loaded = LoadedModules(told.append)
    for _ in range(2):
        bundle = local_modules(importlib.import_module("pkg.m"), loaded)
        assert [path for path, _ in bundle.files] == [
            f"pkg/{name}" for name in ("__init__.py", "c.bin", "d.bin", "m.py")
        ]

    assert len(told) == 1
    assert "pkg/a.bin (0.7 MB), pkg/b.bin (0.4 MB), pkg/unused.py (0.5 MB). At most 1 MB" in told[0]
    assert "Image(includes=[...])" in told[0]


def test_an_installed_module_whose_file_is_gone_is_not_sent(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade while the program runs: it is no module made in memory."""
    root = project({"site-packages/upgraded.py": "", "uses.py": "import upgraded\ndef f(): pass"})
    monkeypatch.syspath_prepend(root / "site-packages")
    uses = importlib.import_module("uses")
    (root / "site-packages/upgraded.py").unlink()

    assert paths(uses.f) == ["uses.py"]


def test_a_journal_looks_at_the_modules_of_a_package(project: Project) -> None:
    """Also at those that no import names; not at data, as results and logs may be in its folder."""
    root = project({**PACKAGE, "pkg/__init__.py": "def f(): pass"})
    fn = importlib.import_module("pkg").f
    first = code_digest(fn)
    (root / "pkg/data/table.csv").write_text("2")
    assert code_digest(fn) == first

    (root / "pkg/found_late.py").write_text("import beside, os")
    assert code_digest(fn) != first


def test_links_are_followed_and_many_files_are_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package has what its links lead to; above a number of files not all are looked for."""
    root = project({"pkg/__init__.py": "", "common/a.csv": "", "common/deep/b.csv": ""})
    (root / "pkg/data").symlink_to(root / "common")
    told: list[str] = []
    pkg = importlib.import_module("pkg")
    names = ["__init__.py", "data/a.csv", "data/deep/b.csv"]
    assert paths(pkg) == [f"pkg/{name}" for name in names]

    monkeypatch.setattr(included, "MAX_FILES", 2)
    assert len(local_modules(pkg, LoadedModules(told.append)).files) == 2
    assert "has more than 2 files" in told[0]


def test_files_lie_on_nodes_as_they_lie_here(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working directory, beside included files; modules from elsewhere by their names."""
    root = project({"src/pkg/__init__.py": "", "src/pkg/a.csv": "", "flat.py": "", "more/b.py": ""})
    monkeypatch.syspath_prepend(root / "src")
    pkg, flat = importlib.import_module("pkg"), importlib.import_module("flat")
    pkg.__path__.append(str(root / "more"))
    found = local_modules((pkg, flat), LoadedModules(base=root))
    elsewhere = local_modules((pkg, flat), LoadedModules(base=root / "src" / "deep"))

    assert [path for path, _ in found.files] == ["flat.py", "src/pkg/__init__.py", "src/pkg/a.csv", "src/pkg/b.py"]
    assert found.roots == {"src"}
    assert [path for path, _ in elsewhere.files] == ["flat.py", "pkg/__init__.py", "pkg/a.csv", "pkg/b.py"]
    assert elsewhere.roots == set()


@pytest.fixture
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that is on no path."""
    return tmp_path_factory.mktemp("bundle")


def test_nothing_is_imported_by_looking(project: Project) -> None:
    """Modules that the program has not imported are not imported to find out what they need."""
    project(
        {
            "loud.py": "raise SystemExit('imported')",
            "names/space/__init__.py": "raise SystemExit('imported')",
            "names/space/part.py": "import loud",
            "quiet.py": "def f():\n    import loud\n    from names.space import part",
        }
    )
    quiet = importlib.import_module("quiet")

    assert paths(quiet.f) == ["loud.py", "names/space/__init__.py", "names/space/part.py", "quiet.py"]
    assert "loud" not in sys.modules


@pytest.mark.parametrize(
    "value", [len, os.path.join, np.sum, pytest.fixture, skyward.shard, CodeBundle, 3, threading.Lock()]
)
def test_installed_and_standard_code_stays_here(value: Any) -> None:
    """The standard library, installed packages, skyward itself and plain values bring nothing."""
    assert local_modules(value).files == ()


def test_editable_installs_are_local(project: Project, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package found by an editable install's finder is sent like any other local code."""
    elsewhere = bundle / "editable_pkg.py"
    elsewhere.write_text("x = 1")

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> Any:
            return importlib.util.spec_from_file_location(name, elsewhere) if name == "editable_pkg" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    project({"uses.py": "def f():\n    import editable_pkg"})

    assert paths(importlib.import_module("uses").f) == ["editable_pkg.py", "uses.py"]


def test_too_much_local_code_is_refused(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the limit is refused with the largest files and a remedy."""
    monkeypatch.setattr(code, "MAX_BYTES", 1 << 20)
    project({"big.py": "import table\ndef f(): pass", "table.py": "#" * (1 << 20)})

    with pytest.raises(SerializationError, match=r"larger than 1 MB; the largest are table.py \(1.0 MB\).*Image\(pip"):
        local_modules(importlib.import_module("big").f)
    with pytest.raises(ConfigError, match=r"Image\(includes=...\) are larger than.*exclude what is not code"):
        bundle_paths([str(tmp_path)])
