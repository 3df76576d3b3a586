"""Programs in the documents do what the text around them says: as they stand, on processes in the place of machines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from tests.conftest import ROOT
from tests.documents import fences
from tests.printed import Printed


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the blocks of a page, or of a section, in order; every provider is `sky.Local`, without accelerators."""
    init = sky.ComputePool.__init__

    @functools.wraps(init)
    def without_accelerator(self: sky.ComputePool, *args: Any, **settings: Any) -> None:
        init(self, *args, **{name: value for name, value in settings.items() if name != "accelerator"})

    monkeypatch.setattr(sky.ComputePool, "__init__", without_accelerator)
    monkeypatch.setattr("skyward.providers.default", sky.Local)
    for provider in ("Docker", "AWS"):
        monkeypatch.setitem(vars(sky), provider, sky.Local)
    monkeypatch.chdir(tmp_path)

    def blocks_of(page: str, section: str = "") -> dict[str, Any]:  # but for those that leave nodes behind
        names: dict[str, Any] = {"__name__": "__main__"}
        lines = (ROOT / "docs" / page).read_text().splitlines()
        heads = [number for number, line in enumerate(lines, 1) if line.startswith("## ")] + [len(lines)]
        first = lines.index(f"## {section}") + 1 if section else 0
        last = next(number for number in heads if number > first)
        for number, fence in enumerate(fences(ROOT / "docs" / page)):
            if fence.language == "python" and first < fence.line < last and "keep=" not in fence.text:
                exec(compile(fence.text, f"{page}, block {number}", "exec", dont_inherit=True), names)
        return names

    return blocks_of


def test_distributed_training(run: Callable[..., dict[str, Any]], printed: Printed) -> None:
    """Two ranks form a group, and the head alone prints from inside."""
    run("distributed-training.md")
    assert printed.read().out == "[0] 2 ranks\n[0, 1]\n"


def test_integrations(run: Callable[..., dict[str, Any]]) -> None:
    """The decorator makes the group; nothing else is needed where torch is there."""
    assert run("integrations/index.md")["main"]() == [3.0, 3.0]


def test_torch(run: Callable[..., dict[str, Any]], printed: Printed) -> None:
    """Both ranks have found the same weight, the right one, and the head alone tells of it."""
    (_, weight), (_, other) = results = run("plugins/torch.md")["results"]
    assert [rank for rank, _ in results] == [0, 1]
    assert weight == other == pytest.approx(3, abs=0.1)
    lines = printed.read().out.splitlines()
    assert len([line for line in lines if line.startswith("[0] epoch")]) == 10
    assert not any(line.startswith("[1]") for line in lines)


def test_joblib(run: Callable[..., dict[str, Any]], printed: Printed) -> None:
    """Calls of `Parallel` come back in their order."""
    run("integrations/joblib.md")
    assert printed.read().out == "9801\n"


def test_data_sharding(run: Callable[..., dict[str, Any]], printed: Printed) -> None:
    """What the page shows is what is printed."""
    run("guides/data-sharding.md")
    shown = next(fence.text for fence in fences(ROOT / "docs/guides/data-sharding.md") if fence.language == "text")
    assert printed.read().out == shown


def test_notebooks(run: Callable[..., dict[str, Any]], printed: Printed) -> None:
    """The cells of the page: the pool is opened, used and closed."""
    names = run("code-and-data.md", "Notebooks")
    assert not names["pool"].is_active
    assert printed.read().out.endswith("squaring 7\n")
