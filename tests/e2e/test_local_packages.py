"""Local packages as nodes see them: whole, with the data beside the modules."""

from __future__ import annotations

import os
import subprocess
import sys
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


@pytest.mark.parametrize(("provider", "bake"), [("Local", ""), ("Docker", "bake")])
def test_a_project_with_a_src_folder(tmp_path: Path, provider: str, bake: str) -> None:
    """Run from its own folder: plug-ins, resources, programs, data that changes, and an included file beside them."""
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src/shop/bin/greet").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "main.py", provider, bake],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    here, there, here_later, there_later = done.stdout.splitlines()
    assert here == there
    assert "few words" in there
    assert here_later == there_later
    assert "other words" in there_later
