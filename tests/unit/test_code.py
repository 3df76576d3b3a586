"""Which local files a function needs on a node, and that it runs there with those files alone."""

from __future__ import annotations

import importlib
import os
import subprocess
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


def run_script(script: Path, bundle: Path) -> bytes:
    """Let a script write the bundle and the pickle of its function `f`; returns the pickle."""
    script.write_text(
        script.read_text() + "\nif __name__ == '__main__':\n"
        "    import sys, pathlib\n"
        "    from skyward._pool.code.bundle import local_modules\n    from skyward.wire import payload\n"
        "    for name, data in local_modules(f).files:\n"
        f"        path = pathlib.Path({str(bundle)!r}) / name\n"
        "        path.parent.mkdir(parents=True, exist_ok=True)\n        path.write_bytes(data)\n"
        "    sys.stdout.buffer.write(payload.dumps_function(f)[1])\n"
    )
    return subprocess.run([sys.executable, script], capture_output=True, check=True, cwd=script.parent).stdout


def call_elsewhere(data: bytes, bundle: Path, arguments: str = "") -> str:
    """What the function returns in a process that has the bundle's files only."""
    bundle.mkdir(exist_ok=True)
    program = (
        f"import sys; sys.path.insert(0, {str(bundle)!r})\n"
        "from skyward.wire import payload\n"
        f"print(payload.loads({data!r})({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=bundle)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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


def test_a_script_brings_what_it_imports(project: Project, bundle: Path) -> None:
    """A function of `__main__` runs where only the sent files are, with module, function, class and lazy imports."""
    root = project(
        {
            "helpers.py": "def double(x): return 2 * x",
            "shapes.py": "class Square:\n    def __init__(self, n): self.n = n\n    def area(self): return self.n ** 2",
            "deep/inner/tool.py": "from . import other\nANSWER = other.VALUE",
            "deep/inner/other.py": "VALUE = 42",
            "main.py": (
                "import helpers\nimport deep.inner.tool\nfrom shapes import Square\n"
                "def inner(x):\n    from late import third\n    return third(x)\n"
                "def f(x):\n    return helpers.double(x) + Square(x).area() + deep.inner.tool.ANSWER + inner(x)\n"
            ),
            "late.py": "def third(x): return x / 3",
        }
    )
    data = run_script(root / "main.py", bundle)

    assert call_elsewhere(data, bundle, "3") == "58.0"
    assert sorted(p.name for p in bundle.rglob("*.py")) == ["helpers.py", "late.py", "other.py", "shapes.py", "tool.py"]


def test_a_decorated_function_shares_its_module(project: Project, bundle: Path) -> None:
    """A compute function of a module is found in the sent module, whose globals need not be picklable."""
    root = project(
        {
            "work.py": (
                "import threading\nimport skyward as sky\nLOCK = threading.Lock()\nSEEN = []\n"
                "@sky.compute\n@sky.stdout(only='head')\n"
                "def train(x):\n    with LOCK:\n        SEEN.append(x)\n    return SEEN, other(2).args\n"
                "@sky.compute\ndef other(x): return x\n"
            ),
            "main.py": "import work\nf = work.train.fn\n",
        }
    )
    data = run_script(root / "main.py", bundle)

    assert call_elsewhere(data, bundle, "1") == "([1], (2,))"
    assert len(data) < 200


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
