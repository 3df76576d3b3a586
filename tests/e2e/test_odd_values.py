"""Odd texts through the real builder: what a node, a step or a shell finds is what the image was given."""

from __future__ import annotations

import hashlib
import json
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from tests.e2e.building import PYTHON, Built
from tests.unit.builder.wheels import make_wheel
from tests.unit.image.odd import ODD

# the same ones in every run, so that one build answers for all
_RANDOM = random.Random(7)
TEXTS = [*ODD, *("".join(_RANDOM.choices(ODD, k=_RANDOM.randint(2, 8))) for _ in range(60)), "", "x" * 20_000]
FOLDER = "a 'b' \"c\" $(id) `id` $HOME ü 漢 #"
SECRET = "".join(ODD)
READ = """
import json, os, pathlib, oddmodule
files = {path.name: path.read_bytes().decode() for path in pathlib.Path("/odd").iterdir()}
print(json.dumps([dict(os.environ), files, oddmodule.version, oddmodule.__file__]))
"""


@pytest.fixture
def built(engine: Any) -> Iterator[Built]:
    built = Built(sky.Docker().images, engine)
    yield built
    built.remove()


def test_odd_texts_arrive(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a hundred of them: environment of nodes, of build steps, commands, a secret, the path of a package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ODD", SECRET)
    make_wheel(tmp_path / FOLDER, "oddmodule", "1.0")
    variables = {f"X_{number}": text for number, text in enumerate(TEXTS)}
    prints = [f"printf %s {shlex.quote(text)} > /odd/{number}" for number, text in enumerate(TEXTS[:-1])]
    dump = "import json, os; json.dump(dict(os.environ), open('/odd/steps', 'w'))"
    image = sky.Image(
        pip=[f"./{FOLDER}/oddmodule-1.0-py3-none-any.whl"],
        env=variables,
        build_env={name: text for name, text in variables.items() if len(text) < 100},
        run=["mkdir /odd", "\n".join(prints), f'python -c "{dump}"', "sha256sum < /run/secrets/ODD > /odd/secret"],
        secrets=["ODD"],
    )
    environment, files, *module = json.loads(built.run(built(image), READ))
    assert {name: text for name, text in environment.items() if name.startswith("X_")} == variables
    steps = json.loads(files["steps"])
    assert {name: text for name, text in steps.items() if name.startswith("X_")} == dict(image.build_env)
    assert [files[str(number)] for number in range(len(prints))] == TEXTS[:-1]
    assert files["secret"].split()[0] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert module == ["1.0", f"/opt/venv/lib/python{PYTHON}/site-packages/oddmodule.py"]
