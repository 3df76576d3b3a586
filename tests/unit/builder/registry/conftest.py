"""A Docker configuration and a cache of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.registry import auth
from tests.unit.builder.registry.server import RegistryServer

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
    monkeypatch.setattr(auth, "_tokens", {})
    return tmp_path


@pytest.fixture
def configure(own_home: Path) -> Configure:
    """Write Docker's configuration: `configure({"auths": ...})`."""

    def write(config: dict[str, Any]) -> Path:
        path = own_home / "docker" / "config.json"
        path.write_text(json.dumps(config))
        return path

    return write


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that asks for nothing; tests set what it asks for."""
    with RegistryServer() as server:
        yield server


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody signed."""
    key, certificate, both = (tmp_path / name for name in ("key.pem", "cert.pem", "both.pem"))
    words = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x -keyout {key}"
    )
    subprocess.run(
        [*words.split(), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + certificate.read_text())
    return both
