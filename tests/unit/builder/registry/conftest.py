"""A Docker configuration and a cache of the test's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Configure = Callable[[dict[str, Any]], Path]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the machine's logins, caches, proxies and tokens."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, folder in {"HOME": "home", "DOCKER_CONFIG": "docker", "XDG_CACHE_HOME": "cache"}.items():
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    return tmp_path


@pytest.fixture
def configure(own_home: Path) -> Configure:
    """Write Docker's configuration: `configure({"auths": ...})`."""

    def write(config: dict[str, Any]) -> Path:
        path = own_home / "docker" / "config.json"
        path.write_text(json.dumps(config))
        return path

    return write
