"""`make engine` on this machine: what it leaves is true, doing it again changes nothing, and kills are survived."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts.engine import base, daemon, envfile, mounts, processes, registry
from scripts.engine.place import Place, here

# The script as people call it: by a plain interpreter.
SCRIPT = [sys.executable, "-m", "scripts.engine"]


@pytest.fixture(scope="module")
def left() -> dict[str, str]:
    """The variables that `make engine` left in this clone."""
    values = envfile.read(here().env)
    assert values, "there is no .engine/env: run `make engine` first"
    return values


def script(
    *arguments: str, clone: Path, env: Mapping[str, str | None] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the engine script of a clone; a variable given as None is unset."""
    changed = {**os.environ, **(env or {})}
    full = {name: value for name, value in changed.items() if value is not None}
    return subprocess.run(
        [*SCRIPT, *arguments], cwd=clone, env=full, capture_output=True, text=True, timeout=250, check=False
    )


def docker(left: Mapping[str, str], *arguments: str, docker_host: str | None = None) -> str:
    """What a docker command prints, with the client and engine that were left."""
    env = {**os.environ, "DOCKER_HOST": docker_host or left["DOCKER_HOST"]}
    argv = [left["SKYWARD_DOCKER_CLI"], *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Place]:
    """A fresh copy of the tree, as a second clone; whatever it started is gone afterwards."""
    place = Place((tmp_path / "clone").resolve())
    for folder in ("scripts", "dockerfiles"):
        shutil.copytree(here().clone / folder, place.clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    yield place
    done = script("purge", clone=place.clone)
    assert done.returncode == 0, done.stderr
    assert not place.root.exists()


@pytest.mark.alone
def test_up_again_is_quick_and_changes_nothing(left: dict[str, str]) -> None:
    """The second `make engine` starts, builds and writes nothing."""
    place = here()
    before = (daemon.pid(place), registry.pid(place), place.env.stat().st_mtime_ns)
    images = docker(left, "images", "--no-trunc", "--quiet", left["SKYWARD_BASE"])

    started_s = time.monotonic()
    done = script("up", clone=place.clone, env={"DOCKER_HOST": left["DOCKER_HOST"]})
    took_s = time.monotonic() - started_s

    assert done.returncode == 0, done.stderr
    assert (daemon.pid(place), registry.pid(place), place.env.stat().st_mtime_ns) == before
    assert docker(left, "images", "--no-trunc", "--quiet", left["SKYWARD_BASE"]) == images
    # 0.2 s alone; the rest is for machines that do something else meanwhile.
    assert took_s < 1.5


def test_the_env_file_tells_the_truth(left: dict[str, str]) -> None:
    """Engine and registry answer, the base is of today's recipe and in the registry, mapped folders exist."""
    assert docker(left, "version", "--format", "{{.Server.Version}}").strip()
    minor = base.python_minor()
    assert left["SKYWARD_BASE"] == base.name(minor)
    docker_client = base.Client(left["SKYWARD_DOCKER_CLI"], left["DOCKER_HOST"])
    assert docker_client.label(left["SKYWARD_BASE"], base.RECIPE_LABEL) == base.recipe(here(), minor)
    if "SKYWARD_REGISTRY" in left:
        assert registry.answers(left["SKYWARD_REGISTRY"])
    for mirror in json.loads(left.get("SKYWARD_INDEXES", "{}")).values():
        assert "://" in mirror or Path(mirror).is_dir()


def test_a_reachable_engine_is_used_as_it_is(left: dict[str, str], copy: Place) -> None:
    """A second clone with DOCKER_HOST set starts no engine, makes no image, and leaves the engine alone at its end."""
    running = docker(left, "info", "--format", "{{.ID}}")

    done = script("up", clone=copy.clone, env={"DOCKER_HOST": left["DOCKER_HOST"]})

    assert done.returncode == 0, done.stderr
    values = envfile.read(copy.env)
    assert (values["DOCKER_HOST"], values["SKYWARD_BASE"]) == (left["DOCKER_HOST"], left["SKYWARD_BASE"])
    assert daemon.pid(copy) is None
    assert not copy.data.exists()
    if "SKYWARD_REGISTRY" in values:
        docker(left, "rmi", f"{values['SKYWARD_REGISTRY']}/{values['SKYWARD_BASE']}")
    assert script("down", clone=copy.clone).returncode == 0
    assert docker(left, "info", "--format", "{{.ID}}") == running


def test_an_unreachable_docker_host_is_one_sentence(copy: Place) -> None:
    """The error names the address and the way out; nothing is left running and no env file is written."""
    done = script("up", clone=copy.clone, env={"DOCKER_HOST": "unix:///nowhere/docker.sock"})

    assert done.returncode == 1
    assert "DOCKER_HOST names unix:///nowhere/docker.sock, and no engine answers there." in done.stderr
    assert "Traceback" not in done.stderr
    assert not copy.env.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root")
@pytest.mark.skipif(shutil.which("dockerd") is None, reason="this machine uses an engine from elsewhere")
def test_a_killed_engine_comes_back(left: dict[str, str], copy: Place, tmp_path: Path) -> None:
    """After SIGKILL of dockerd with a container running, `up` recovers; after another one, `down` leaves nothing."""
    unnamed = {"DOCKER_HOST": None}
    copy.root.mkdir()
    _start_engine(copy)
    docker(left, "save", "--output", str(tmp_path / "base.tar"), left["SKYWARD_BASE"])
    docker(left, "load", "--input", str(tmp_path / "base.tar"), docker_host=copy.docker_host)
    (tmp_path / "base.tar").unlink()
    assert script("up", clone=copy.clone, env=unnamed).returncode == 0
    first = daemon.pid(copy)
    sleeper = ["run", "--detach", "--init", "--network=host", left["SKYWARD_BASE"], "sleep", "600"]
    docker(left, *sleeper, docker_host=copy.docker_host)

    _kill_engine(copy)
    done = script("up", clone=copy.clone, env=unnamed)

    assert done.returncode == 0, done.stderr
    assert daemon.pid(copy) not in {None, first}
    assert "is there" in done.stdout
    assert docker(left, "ps", "--quiet", docker_host=copy.docker_host) == ""

    docker(left, *sleeper, docker_host=copy.docker_host)
    _kill_engine(copy)
    done = script("down", clone=copy.clone)

    assert done.returncode == 0, done.stderr
    assert processes.naming(copy.root) == []
    assert processes.naming(copy.run) == []
    assert mounts.below([copy.root, copy.run], Path("/proc/self/mountinfo").read_text()) == []


def _start_engine(place: Place) -> None:
    """Start only the engine of a copy, by a process of its own as `up` does."""
    code = "from scripts.engine import daemon, place; daemon.ensure(place.here())"
    subprocess.run([sys.executable, "-c", code], cwd=place.clone, check=True, timeout=60)


def _kill_engine(place: Place) -> None:
    """SIGKILL to the private engine of a copy, as a crash would."""
    running = daemon.pid(place)
    assert running
    os.kill(running, 9)
