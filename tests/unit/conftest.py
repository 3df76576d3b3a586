"""Fixtures of unit tests of several packages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_open_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool that end-to-end tests have left open in this process is the active one."""
    monkeypatch.setattr("skyward.runtime.active_pool._open", [])


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for sockets and pools of this test alone: tests of several processes name their pools alike.

    It is not below `tmp_path`, whose length leaves no room for a socket's name.
    """
    with tempfile.TemporaryDirectory(prefix="rt.", ignore_cleanup_errors=True) as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as this machine's only package source, and caches of its own."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "SKYWARD_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "wheels"
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {folder}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr("skyward.builder.site.indexes._SYSTEM_FILES", ())
    monkeypatch.chdir(tmp_path)
    folder.mkdir()
    return folder
