"""Podman's builder: it builds what BuildKit does, and tells of its steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import Images

START_LIMIT_S = 60


@pytest.fixture
def podman(tmp_path: Path, engine: Any) -> Iterator[dict[str, str]]:
    """Podman's service with a store of its own and the suite's base; the variables that lead to it."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("this takes podman, and root")
    settings = tmp_path / "storage.conf"
    settings.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/store"\nrunroot = "{tmp_path}/run"\n')
    registries = tmp_path / "registries.conf"
    registries.write_text(f'[[registry]]\nlocation = "{os.environ["SKYWARD_REGISTRY"]}"\ninsecure = true\n')
    env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(settings), "CONTAINERS_REGISTRIES_CONF": str(registries)}
    base = os.environ["SKYWARD_BASE"]
    with (tmp_path / "base.tar").open("wb") as file:
        for chunk in engine.images.get(base).save(named=base):
            file.write(chunk)
    subprocess.run(["podman", "load", "-q", "-i", file.name], env=env, check=True, capture_output=True)
    path = tmp_path / "podman.sock"
    with subprocess.Popen(
        ["podman", "system", "service", "--time", "0", f"unix://{path}"], env=env, stderr=subprocess.DEVNULL
    ) as service:
        deadline = time.monotonic() + START_LIMIT_S
        while not path.exists():
            assert time.monotonic() < deadline, "podman's service did not start"
            time.sleep(0.05)
        yield {
            "DOCKER_HOST": f"unix://{path}",
            "SKYWARD_BASE": f"localhost/{base}",
            "SKYWARD_DOCKER_CLI": "podman",
            "CONTAINERS_STORAGE_CONF": str(settings),
            "CONTAINERS_REGISTRIES_CONF": str(registries),
        }
        service.terminate()
    subprocess.run(["podman", "system", "reset", "--force"], env=env, check=False, capture_output=True)


def test_podman_builds_on_its_engine(
    podman: dict[str, str], engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever store its own is; doctor says which builder it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = Images(engine, tmp_path)
    (here,) = images("doctor", "--json", **podman).events
    assert here["builder"].startswith("podman version ")
    other = tmp_path / "other.conf"
    other.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/other"\nrunroot = "{tmp_path}/other-run"\n')
    for env in (podman, {**podman, "CONTAINERS_STORAGE_CONF": str(other)}):
        done = images("build", file := images.file(), "--json", **env)
        assert done.status == 0, done.err + done.out
        assert {"start", "done"} <= {event["state"] for event in done.of("layer")}
        assert images("build", file, "--check", **env).status == 0
    pushed = images("build", file, "--push", f"{os.environ['SKYWARD_REGISTRY']}/of-podman", "--json", **podman)
    assert pushed.status == 0, pushed.err + pushed.out
    failed = images("build", images.file("echo some words; exit 7"), "--json", **podman)
    (error,) = failed.of("error")
    assert "asked for by your run=" in error["message"]
    assert "exit status 7" in error["message"]
    assert "some words" in [event["line"] for event in failed.of("output")]
