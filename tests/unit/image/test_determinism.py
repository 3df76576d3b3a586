"""One identity for one content, whatever the hash seed, the order in which it was said, and the client's Python."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

import packaging
import pytest

ROOT = Path(__file__).parents[3]
SEEDS = 30
# three orders per process; the hash seed makes the sets' order another one in each
CODE = """
import random, sys
from tests.unit.image.images import compiled
from skyward.model.image import Image, PipIndex

def mixed(*items):
    listed = [*{*items}]
    random.shuffle(listed)
    return listed

for _ in range(3):
    image = Image(
        base="python:3.11-slim",
        pip_indexes=mixed(
            PipIndex("https://download.pytorch.org/whl/cpu", mixed("torch", "torchvision", "torchaudio")),
            PipIndex("https://a.example/simple", mixed("x", "y")),
        ),
        run=["b", "a"],
        excludes=mixed("**/*.csv", "data"),
    )
    steps = [
        *(lambda i, name=name: i.pip_install(name) for name in ("numpy", "Pandas >= 2", "torch", "x[b,a]")),
        *(lambda i, name=name: i.apt_install(name) for name in ("git", "curl")),
        *(lambda i, pair=pair: i.with_env(dict([pair])) for pair in (("A", "1"), ("B", "2"), ("C", "a\\nb"))),
        *(lambda i, pair=pair: i.with_build_env(dict([pair])) for pair in (("D", "1"), ("E", "2"))),
        *(lambda i, name=name: i.with_secrets(name) for name in ("HF_TOKEN", "other")),
        *(lambda i, name=name: i.with_includes(name) for name in ("src", "./lib")),
    ]
    random.shuffle(steps)
    for step in steps:
        image = step(image)
    plan = compiled(image)
    print(plan.identity, repr(image), repr(plan.dockerfile))
"""


def printed(seed: int, python: str = sys.executable) -> list[str]:
    """What a process with that hash seed prints. It loads no `site`, which would take half of its time."""
    paths = (ROOT, Path(packaging.__file__).parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [python, "-S", "-c", CODE]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def interpreters(minor: str) -> Iterator[str]:
    """Pythons of a minor version on this machine, where they are usually kept."""
    folders = ("~/.pyenv/versions", "~/.local/share/uv/python")
    kept = [path for folder in folders for path in Path(folder).expanduser().glob(f"*{minor}.*/bin/python{minor}")]
    for each in (which(f"python{minor}"), *map(str, sorted(kept))):
        if each and subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            yield each


def test_many_hash_seeds_and_orders() -> None:
    """Thirty hash seeds, with three construction orders each, give one value, one text and one identity."""
    with ThreadPoolExecutor(4) as threads:
        lines = [line for each in threads.map(printed, range(SEEDS)) for line in each]
    assert len(lines) == 3 * SEEDS
    assert len(set(lines)) == 1


@pytest.mark.parametrize("minor", ["3.11", "3.12", "3.13"])
def test_every_python_gives_the_same(minor: str) -> None:
    """The client's interpreter decides which Python an image is for, and nothing else."""
    other = next(interpreters(minor), None)
    if other is None:
        pytest.skip(f"there is no Python {minor} on this machine to compare with")
    assert set(printed(1, other)) == set(printed(0))
