"""Why something would be rebuilt: the inputs that differ from the last build, and the layers that costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.explain import Explanation, explain, memory_of, recall, remember
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
    return explain(compiled(image, lock=Lock(packages or (TORCH, SIX)), **given), last)


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
        (_explained(base_digest="sha256:1"), [("base", f"sha256:{'ba5e' * 12}ba...", "sha256:1")], 0),
        (_explained(IMAGE.with_build_env(B="1")), [("build_env", "", "B=1")], 1),
    ],
    ids=["nothing", "env", "skyward", "light", "torch", "run", "order", "secret", "apt", "base", "build env"],
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


def test_without_a_last_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything would be made, and there is nothing to compare with; also where the file cannot be read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = compiled(IMAGE, lock=Lock((TORCH, SIX)))
    assert recall("images/x.toml") is None
    explained = explain(plan, None)
    assert ([layer.name for layer in explained.rebuilt], explained.changes) == (LAYERS, ())
    remember("images/x.toml", plan)
    assert recall("images/x.toml") == memory_of(plan)
    assert recall("images/y.toml") is None
    (file,) = (tmp_path / "skyward/builds").iterdir()
    file.write_text("{")
    assert recall("images/x.toml") is None
