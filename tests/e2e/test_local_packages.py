"""Local packages as nodes see them: whole, with the data beside the modules."""

from __future__ import annotations

import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

PROJECT = {
    "src/shop/__init__.py": "",
    "src/shop/plugins/__init__.py": """
import importlib, pkgutil
NAMES = [each.name for each in pkgutil.iter_modules(__path__)]
def load(name):
    return importlib.import_module(f"{__name__}.{name}").VALUE
""",
    "src/shop/plugins/first.py": "from rates import VALUE",
    "src/shop/plugins/second.py": "VALUE = 2",
    "src/rates.py": "VALUE = 1",
    "src/shop/data/words.txt": "few words",
    "src/shop/.gitignore": "*.large",
    "src/shop/data/weights.large": "weights",
    "src/shop/bin/greet": "#!/bin/sh\necho hello",
    "main.py": """
import sys
import zipapp
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent / "src"))
import shop.plugins
import skyward as sky

@sky.compute
def look():
    import importlib.resources as resources, subprocess
    here = Path(shop.__file__).parent
    return (
        shop.plugins.NAMES, [shop.plugins.load(name) for name in shop.plugins.NAMES],
        resources.files("shop").joinpath("data/words.txt").read_text(), (here / "data/words.txt").read_text(),
        (here / "data/weights.large").read_text(), subprocess.check_output([here / "bin/greet"], text=True),
    )

if __name__ == "__main__":
    provider, bake = sys.argv[1:]
    image = sky.Image(includes=["src/shop/data/weights.large"], bake=bool(bake))
    with sky.ComputePool(getattr(sky, provider)(), nodes=1, image=image, display="quiet") as pool:
        print(look.local())
        print(look() >> pool)
        (Path(shop.__file__).parent / "data/words.txt").write_text("other words")
        print(look.local())
        print(look() >> pool)
""",
}

ODD = {
    # found by names that are put together, in a folder on sys.path
    "more/dyn/a.py": "VALUE = 'a'",
    "more/dyn/b/__init__.py": "VALUE = 'b'",
    # editable installs: a project that asks for its version and its plug-ins, and one that is a plug-in
    "host/src/host/__init__.py": """
from importlib import metadata
VERSION = metadata.version("host-proj")
def plugins():
    return [each.load()() for each in metadata.entry_points(group="host.plugins")]
""",
    "plug/plug/__init__.py": "from .sub import answer",
    "plug/plug/sub.py": "def answer():\n    return 'plugged in'",
    "lib/site-packages/host_proj-1.5.dist-info/METADATA": "Name: host-proj\nVersion: 1.5\n",
    "lib/site-packages/host_proj-1.5.dist-info/direct_url.json": '{"url": "file:///h", "dir_info": {"editable": true}}',
    "lib/site-packages/plug-2.0.dist-info/METADATA": "Name: plug\nVersion: 2.0\n",
    "lib/site-packages/plug-2.0.dist-info/direct_url.json": '{"url": "file:///p", "dir_info": {"editable": true}}',
    "lib/site-packages/plug-2.0.dist-info/entry_points.txt": "[host.plugins]\nit = plug:answer\n",
    # an archive, which uses a module that is in none
    "app/tool/__init__.py": "",
    "app/tool/work.py": "import pkgutil\nfrom rates import RATE\ndef read(): return pkgutil.get_data('tool', 'a.txt')",
    "app/tool/a.txt": "text",
    "more/rates.py": "RATE = 3",
    "config.txt": "VALUE = 'configured'",
    "app/__main__.py": """
import importlib, sys, threading, types
from pathlib import Path
root = Path(__file__).parents[1]
sys.path[1:1] = [str(root / name) for name in ("lib/site-packages", "host/src", "plug", "more")]
import host
from tool import work
import skyward as sky

MADE = '''
import enum
class Size(enum.Enum):
    SMALL = 1
class Point:
    def __init__(self, x):
        self.x = x
    def scaled(self):
        return self.x * FACTOR
FACTOR = 2
def double_factor():
    global FACTOR
    FACTOR *= 2
'''
class Module(types.ModuleType):
    @property
    def half(self):
        return self.FACTOR / 2

made, locked = Module("made"), types.ModuleType("locked")
sys.modules |= {"made": made, "locked": locked}
exec(MADE, vars(made))
locked.lock = threading.Lock()
sys.modules["config"] = config = types.ModuleType("config")
config.__file__ = str(root / "config.txt")
exec((root / "config.txt").read_text(), vars(config))

class Importer:
    SOURCE = "VALUE = 'imported'"
    create_module = staticmethod(lambda spec: None)
    exec_module = staticmethod(lambda module: exec(Importer.SOURCE, vars(module)))
    get_source = staticmethod(lambda name: Importer.SOURCE)
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_loader(name, Importer) if name == "of_importer" else None

sys.meta_path.append(Importer)
import of_importer

@sky.compute
def look(point, name):
    import made as again
    again.double_factor()
    again.FACTOR //= 2
    config = importlib.import_module("config")
    return (
        [importlib.import_module(f"dyn.{name}").VALUE, __import__("dyn.b").b.VALUE],
        host.VERSION, host.plugins(), work.read(), work.RATE, made.FACTOR, point.scaled(),
        type(point) is again.Point, made.half, made.Size.SMALL, of_importer.VALUE, config.VALUE,
    )

@sky.compute
def identity(value):
    return value

@sky.compute
def use_lock():
    import locked

if __name__ == "__main__":
    with sky.ComputePool(getattr(sky, sys.argv[1])(), nodes=1, display="quiet") as pool:
        point = made.Point(1)
        print(look.local(point, "a"))
        print(look(point, "a") >> pool)
        made.FACTOR = 7
        print(look.local(point, "b"))
        print(look(point, "b") >> pool)
        point, size = identity((point, made.Size.SMALL)) >> pool
        print(type(point) is made.Point, size is made.Size.SMALL)
        try:
            use_lock() >> pool
        except ImportError as error:
            print(error)
""",
}


def run(folder: Path, files: dict[str, str], *words: str) -> list[str]:
    """Write a project, run a program of it in its own folder, and return the lines that it prints."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if "app/__main__.py" in files:
        zipapp.create_archive(folder / "app", folder / "app.pyz")
    if "src/shop/bin/greet" in files:
        (folder / "src/shop/bin/greet").chmod(0o755)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("provider", "bake"), [("Local", ""), ("Docker", "bake")])
def test_a_project_with_a_src_folder(tmp_path: Path, provider: str, bake: str) -> None:
    """Run from its own folder: plug-ins, resources, programs, data that changes, and an included file beside them."""
    here, there, here_later, there_later = run(tmp_path, PROJECT, "main.py", provider, bake)
    assert here == there
    assert "few words" in there
    assert here_later == there_later
    assert "other words" in there_later


@pytest.mark.parametrize("provider", ["Local", "Docker"])
def test_modules_that_no_import_names_and_no_file_has(tmp_path: Path, provider: str) -> None:
    """Names that are put together, entry points, an archive, an importer, memory; what cannot be sent is named."""
    here, there, here_later, there_later, same, refusal = run(tmp_path, ODD, "app.pyz", provider)
    assert here == there
    assert "'1.5', ['plugged in'], b'text', 3, 2, 2, True" in there
    assert here_later == there_later
    assert "7, 7, True" in there_later
    assert same == "True True"
    assert refusal.startswith(
        "The module 'locked', which was not imported from a file, cannot be pickled: ['lock'] of it gives"
    )
    assert refusal.endswith("Write the module to a file, or install it on the nodes.")
