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
    """The module a function lives in, and what that imports, at its top or in functions, are sent."""
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
        "optional.py",
        "settings.py",
        "train.py",
    ]


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


def test_the_digest_is_that_of_the_content(project: Project) -> None:
    """Equal files give an equal bundle, changed content another digest."""
    root = project({"one.py": "def f(): pass"})
    one = importlib.import_module("one")
    first, again = local_modules(one.f), local_modules(one.f)
    (root / "one.py").write_text("def f(): return 1")

    assert first == again
    assert first.digest != local_modules(one.f).digest


def test_too_much_local_code_is_refused(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the limit is refused with the largest files and a remedy."""
    monkeypatch.setattr(code, "MAX_BYTES", 1 << 20)
    project({"big.py": "import table\ndef f(): pass", "table.py": "#" * (1 << 20)})

    with pytest.raises(SerializationError, match=r"larger than 1 MB; the largest are table.py \(1.0 MB\).*Image\(pip"):
        local_modules(importlib.import_module("big").f)
    with pytest.raises(ConfigError, match=r"Image\(includes=...\) are larger than.*exclude what is not code"):
        bundle_paths([str(tmp_path)])
