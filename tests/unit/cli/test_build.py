"""`skyward build` as far as it goes without building: reading, printing, checking, an image that is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.store import note_content
from tests.unit.cli.conftest import Skyward
from tests.unit.engine.fake import FakeEngine

TOML = 'run = ["make it"]\n[env]\nA = "b c"\n'
SCRIPT = """
import skyward as sky
SMALL = sky.Image(run=["one"])
@sky.pool(image=SMALL)
def first(): ...
@sky.pool(image=sky.Image(run=["two"]), architecture="arm64")
def second(): ...
if __name__ == "__main__":
    raise SystemExit("this must not run")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _make(skyward: Skyward, engine: FakeEngine, *words: object) -> list[str]:
    """Give the engine the images of a file, as if they had been built; their tags."""
    tags = [line.split()[0] for line in skyward("build", *words, "--check")[1].splitlines()]
    for tag in tags:
        engine.add(tag)
        note_content(tag, "", f"sha256:{tag}")
    engine.requests.clear()
    return tags


def test_print_names_who_asked(skyward: Skyward, engine: FakeEngine, file: Path) -> None:
    """Each instruction stands after its origin, the whole is a Dockerfile, and nobody is asked."""
    status, out, err = skyward("build", file, "--print")

    assert (status, err, engine.requests) == (0, "", [])
    assert "FROM base:1 AS python\n" in out
    before, _, _ = out.partition('ENV A="b c"')
    assert before.splitlines()[-1] == "# env: asked for by your image"
    assert "asked for by your run=['make it']" in out
    assert "LABEL" not in out


def test_check_says_whether_an_image_exists(
    skyward: Skyward, engine: FakeEngine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 and 1, and 3 with the reason where there is no engine; to print, none is needed."""
    status, out, _ = skyward("build", file, "--check")
    assert status == 1
    assert out.endswith(f"{file}: absent\n")

    _make(skyward, engine, file)
    assert skyward("build", file, "--check")[0] == 0

    monkeypatch.setenv("DOCKER_HOST", f"unix://{file.parent}/none.sock")
    status, out, _ = skyward("build", file, "--check")
    assert (status, "unknown (No Docker engine answers" in out) == (3, True)
    assert skyward("build", file, "--print")[0] == 0


def test_an_image_that_exists_is_not_built(skyward: Skyward, engine: FakeEngine, file: Path) -> None:
    """Nothing is asked but what the base and the image are."""
    (tag,) = _make(skyward, engine, file)

    status, out, err = skyward("build", file)

    assert (status, err) == (0, "")
    assert out.splitlines() == [f"{tag}  {file}: exists", f"  id      sha256:{tag}", "  size    1 kB"]
    assert engine.requests == ["GET /images/base:1/json", f"GET /images/{tag}/json"]


def test_an_image_that_was_not_built_here_does_not_exist(skyward: Skyward, engine: FakeEngine, file: Path) -> None:
    """Whatever has its tag on the engine, which anybody who may use that can move; `--explain` says the same."""
    (tag,) = _make(skyward, engine, file)
    engine.images[tag] |= {"Id": "sha256:other"}

    assert skyward("build", file, "--check")[0] == 1
    (event,) = _explained(skyward, file)
    assert not event["exists"]


def test_an_error_is_an_event_too(skyward: Skyward, tmp_path: Path) -> None:
    """With the exit status that follows; people still get their sentence."""
    status, out, err = skyward("build", tmp_path / "none.toml", "--json")

    event = json.loads(out)
    assert status == 2
    assert (event["event"], event["kind"], event["status"]) == ("error", "ConfigError", 2)
    assert err == f"skyward: {event['message']}\n"


def test_a_program_with_pools_at_its_top_level_is_imported(skyward: Skyward, script: Path) -> None:
    """Every pool there has its image, named by file and function; each for its own platform. One can be named."""
    status, out, _ = skyward("build", script, "--check", "--json")

    events = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [event["image"] for event in events] == [f"{script}:first", f"{script}:second"]
    assert "train.py:second for linux/arm64" in skyward("build", script, "--print")[1]
    assert skyward("build", f"{script}:SMALL", "--check")[1].count("absent") == 1


def test_a_program_is_run_with_its_arguments(skyward: Skyward, script: Path) -> None:
    """As far as its first pool; a pool of processes needs no image."""
    script.write_text(
        "import sys, skyward as sky\nif __name__ == '__main__':\n    print('printed')\n"
        "    sky.ComputePool(getattr(sky, sys.argv[1])(), image=sky.Image(run=sys.argv[2:])).open()\n"
    )

    docker = skyward("build", script, "--print", "--", "Docker", "--one")
    status, out, _ = skyward("build", script, "--json", "--", "Local")

    assert (docker[0], "--one" in docker[1], "printed" in docker[1]) == (0, True, False)
    assert (status, json.loads(out)["event"], "no image" in json.loads(out)["message"]) == (0, "note", True)


def _explained(skyward: Skyward, script: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in skyward("build", script, "--explain", "--json")[1].splitlines()]


def test_what_exists_is_not_explained_as_changed(skyward: Skyward, engine: FakeEngine, file: Path) -> None:
    """Also where the last build was of something else: an edit that was taken back needs no build."""
    _make(skyward, engine, file)
    skyward("build", file)
    file.write_text(TOML.replace("make it", "make other"))
    _make(skyward, engine, file)
    skyward("build", file)
    file.write_text(TOML)

    (event,) = _explained(skyward, file)

    assert event["exists"]
    assert event["changes"] == event["rebuilt"] == []
    assert event["cached"]


def test_an_image_that_exists_loads_nothing_heavy(engine: FakeEngine, skyward: Skyward, file: Path) -> None:
    """No docker SDK, no rich, nothing that builds: that is what keeps it quick."""
    _make(skyward, engine, file)
    code = f"import sys\nfrom skyward.cli.main import main\nmain(['build', {str(file)!r}])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())

    assert "exists" in done.stdout
    assert not {"docker", "rich", "requests", "boto3", "skyward.builder.docker.build"} & loaded


def test_eject_takes_one_image(skyward: Skyward, script: Path, tmp_path: Path) -> None:
    """Of a script with two pools it says which there are."""
    status, _, err = skyward("build", script, "--eject", tmp_path / "out")
    assert status == 2
    assert "--eject writes one image, and 2 are declared" in err
