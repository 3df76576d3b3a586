"""The user's cache: everything goes on without it, whatever is wrong with it, and one line says so."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyward.builder import folders
from skyward.builder.events import warn
from skyward.builder.explain import memories, remember
from skyward.builder.packages.lock import Request, _read, _write
from skyward.builder.plans import ensure
from skyward.builder.store import EngineImages, ImageFacts, forget_use, is_known, last_use, note_content
from skyward.image import Lock
from skyward.model.image import Image
from tests.unit.image.images import compiled

PLAN = compiled(Image())
REQUEST = Request(image=Image(pip=["numpy"]), python="3.11", platform="linux/amd64")


class Store(EngineImages):
    """An engine that has the image already, as another process has made it."""

    def __init__(self) -> None:
        pass

    def inspect(self, ref: str) -> ImageFacts | None:
        return ImageFacts(id="sha256:1", content="sha256:c") if ref == PLAN.tag else None

    def pull(self, ref: str) -> None:
        raise AssertionError(ref)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    warn.cache_clear()


def _use_everything() -> None:
    """Write and read all that is kept; only what this process notes itself is sure to be known again."""
    _write(folders.cache_path("locks", "a.json"), REQUEST, Lock())
    _read(folders.cache_path("locks", "a.json"))
    assert isinstance(folders.newest(folders.cache_path("locks"), "*.json"), list)
    remember(PLAN)
    memories()
    last_use(PLAN.tag)
    forget_use(PLAN.tag)
    note_content(PLAN.tag, "sha256:c")
    assert is_known(PLAN.tag, Store().inspect(PLAN.tag))
    assert ensure(PLAN, Store(), print).id == "sha256:1"


def _full(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    def mkstemp(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)


def _read_only(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/nowhere")


def _of_another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache/skyward").mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def _no_home(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # a number without an account
    monkeypatch.setattr(folders, "NOWHERE", Path("/proc/self/nowhere"))


@pytest.mark.parametrize("spoil", [_full, _read_only, _of_another_user, _no_home])
def test_a_cache_that_cannot_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    """One line names the folder and the reason; nothing is left in the working directory."""
    monkeypatch.chdir(tmp_path)
    spoil(monkeypatch, tmp_path)
    _use_everything()
    (line,) = caplog.messages
    assert line.startswith(f"the cache {folders.cache_path()} cannot be used: ")
    assert not (tmp_path / "~").exists()
    assert list(tmp_path.rglob(".*")) == []


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'{"entries": [', b"[1]", b"{}", b"null"])
def test_files_that_say_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """No text, truncated, of another version: taken for none, without a word, and written anew."""
    _use_everything()
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"contents", "builds", "locks"}
    for path in files:
        path.write_bytes(content)
    _use_everything()
    assert caplog.messages == []
