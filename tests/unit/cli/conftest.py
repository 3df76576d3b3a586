"""The command line against an engine that has images but runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward.cli.main import main
from tests.unit.engine.fake import FakeEngine, fake_engine

Skyward = Callable[..., tuple[int, str, str]]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The engine that DOCKER_HOST names; the user's cache is empty."""
    with fake_engine(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("SKYWARD_BASE", "base:1")
        engine.add("base:1")
        yield engine


@pytest.fixture
def skyward(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> Skyward:
    """Run the command line; its exit status and what it prints on both streams."""

    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run
