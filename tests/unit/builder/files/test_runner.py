"""The digest of the runner's files is noted, and follows each change of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.builder.files import runner


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is the only one to be copied, and a cache of its own."""
    folder = tmp_path / "packed_by_test"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("A = 1\n")
    (folder / "inner" / "b.py").write_text("B = 2\n")
    (folder / "inner" / "data.txt").write_text("no code\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(runner, "_PACKAGES", (folder.name,))
    return folder


def digest() -> str:
    """What a new process finds."""
    runner.runner_files.cache_clear()
    return runner.runner_digest.__wrapped__()


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Other tests see the files of this process."""
    yield
    runner.runner_files.cache_clear()
    runner.runner_digest.cache_clear()


def test_paths_and_contents(package: Path) -> None:
    """Python files alone, in order."""
    files = runner.runner_files.__wrapped__()
    assert files == ((f"{package.name}/__init__.py", b"A = 1\n"), (f"{package.name}/inner/b.py", b"B = 2\n"))


def test_files_are_read_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = digest()
    with monkeypatch.context() as unread:
        unread.setattr(runner, "runner_files", None)
        assert runner.runner_digest.__wrapped__() == first


def test_each_change_is_seen(package: Path) -> None:
    """Of a content of the same length, of a name, of a file more or less; back again it is as before."""
    first = digest()
    (package / "inner" / "b.py").write_text("B = 3\n")
    second = digest()
    (package / "inner" / "b.py").rename(package / "inner" / "c.py")
    third = digest()
    (package / "inner" / "c.py").unlink()
    fourth = digest()
    (package / "inner" / "b.py").write_text("B = 2\n")
    assert len({first, second, third, fourth}) == 4
    assert digest() == first
