"""Why something would be rebuilt: the inputs that differ from the last build, and the layers that costs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.explain import Explanation, explain, memories, memory_of, remember
from skyward.image import Lock, Package
from skyward.model.image import Image
from tests.unit.image.images import compiled

TORCH = Package(name="torch", pin="torch==2.13.0", hashes=("sha256:aa",))
SIX = Package(name="six", pin="six==1.17.0", hashes=("sha256:bb",))
IMAGE = Image(apt=["git"], pip=["torch", "six"], run=["make", "date"], env={"A": "1"}, secrets=["TOKEN"])
LAYERS = [
    "Python 3.11 in /opt/venv",
    "pip torch==2.13.0 (framework)",
    "apt git",
    "pip six",
    "run make",
    "run date",
    "the runner",
]


def _explained(image: Image = IMAGE, *packages: Package, **given: Any) -> Explanation:
    last = memory_of(compiled(IMAGE, lock=Lock((TORCH, SIX))))
    return explain(compiled(image, lock=Lock(packages or (TORCH, SIX)), **given), [last])


@pytest.mark.parametrize(
    ("explained", "changes", "reused"),
    [
        (_explained(), [], 7),
        (_explained(IMAGE.with_env(A="2")), [("env", "A=1", "A=2")], 7),
        (_explained(runner_digest="1"), [("runner", f"{'f11e' * 14}f...", "1")], 6),
        (_explained(IMAGE, TORCH, replace(SIX, pin="six==2")), [("pip", "six==1.17.0", "six==2")], 3),
        (_explained(IMAGE, SIX, replace(TORCH, pin="torch==3")), [("pip", "torch==2.13.0", "torch==3")], 1),
        (_explained(IMAGE.run_commands("true")), [("run", "", "true")], 6),
        (_explained(replace(IMAGE, run=["date", "make"])), [("run", "make, date", "date, make")], 4),
        (_explained(replace(IMAGE, secrets=["OTHER"])), [("secrets", "TOKEN", "OTHER")], 4),
        (_explained(IMAGE.apt_install("curl")), [("apt", "", "curl")], 2),
        (_explained(IMAGE.with_build_env(B="1")), [("build_env", "", "B=1")], 1),
    ],
    ids=["nothing", "env", "skyward", "light", "torch", "run", "order", "secret", "apt", "build env"],
)
def test_what_changed_and_what_it_costs(
    explained: Explanation, changes: list[tuple[str, str, str]], reused: int
) -> None:
    """Each input is told with what went and what came; layers below the first change are reused."""
    found = [(change.input, change.before, change.after) for change in explained.changes]
    assert found == changes
    assert len(explained.reused) == reused
    names = [layer.name for layer in (*explained.reused, *explained.rebuilt)]
    assert [name for name in names if name in LAYERS][:reused] == LAYERS[:reused]


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of known builds, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "skyward/builds"


def test_without_a_last_build(builds: Path) -> None:
    """Everything would be made, and there is nothing to compare with; also where the file cannot be read."""
    plan = compiled(IMAGE, lock=Lock((TORCH, SIX)))
    explained = explain(plan, memories())
    assert ([layer.name for layer in explained.rebuilt], explained.changes, explained.last) == (LAYERS, (), None)
    remember(plan)
    assert memories() == [memory_of(plan)]
    (file,) = builds.iterdir()
    file.write_text("{")
    assert memories() == []


@pytest.mark.parametrize("source", ["/me/train.py", "/me/train.py:IMAGE", "/me/other.py"])
def test_the_build_to_compare_with(builds: Path, source: str) -> None:
    """The last one of the same file, also if nothing of it stays; else the one with most of the layers."""
    first, second = (compiled(replace(IMAGE, run=[word]), lock=Lock((TORCH, SIX))) for word in ("a", "b"))
    small = compiled(Image(apt=["git"]))
    for second_of, (plan, file) in enumerate([(first, source), (second, source), (small, "/me/small.py")]):
        remember(plan, file)
        os.utime(builds / f"{plan.tag.rpartition(':')[2]}.json", (second_of, second_of))

    def explained(image: Image, **given: str) -> Explanation:
        return explain(compiled(image, lock=Lock((TORCH, SIX)), **given), memories(), "/me/train.py")

    assert explained(replace(IMAGE, run=["a", "c"])).last == first.tag  # it has one layer more
    assert explained(replace(IMAGE, run=["c"])).last == second.tag
    moved = explained(replace(IMAGE, run=["c"]), base_digest="sha256:1")
    if source == "/me/other.py":
        assert (moved.last, moved.reused) == (None, ())
    else:
        assert (moved.last, [each.input for each in moved.changes], moved.reused) == (second.tag, ["base", "run"], ())
    assert explained(IMAGE, platform="linux/arm64").last is None
