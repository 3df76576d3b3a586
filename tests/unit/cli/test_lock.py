"""`skyward lock`: files that make the same image everywhere, and that are refused where they no longer fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.builder.wheels import make_index, make_wheel
from tests.unit.cli.conftest import Skyward
from tests.unit.engine.fake import FakeEngine

TOML = 'pip = ["top"]\nrun = ["true"]\n'


@pytest.fixture
def file(wheels: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A declared image, and packages for it."""
    monkeypatch.setenv("SKYWARD_BASE", "base:1")
    make_wheel(wheels, "leaf", "1.0")
    make_wheel(wheels, "top", "1.0", "leaf")
    path = wheels.parent / "images" / "small.toml"
    path.parent.mkdir()
    path.write_text(TOML)
    return path


def _tag(skyward: Skyward, file: Path) -> str:
    status, out, err = skyward("build", file, "--check")
    assert status == 1, out + err
    return out.split()[0]


def test_the_same_tag_for_all_at_any_time(
    skyward: Skyward, wheels: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the lock: another person, in another folder, later, and without any index. Without it: another image."""
    status, out, _ = skyward("lock", file)
    assert (status, out) == (0, "images/small.lock: 2 packages for linux/amd64, Python 3.11, written\n")
    tag = _tag(skyward, file)

    clone = tmp_path / "clone"
    shutil.copytree(file.parent, clone)
    make_wheel(wheels, "leaf", "2.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with monkeypatch.context() as without:
        without.setattr("skyward.builder.packages.resolver.find_uv", lambda: "/nowhere/uv")
        assert _tag(skyward, clone / "small.toml") == tag
    (clone / "small.lock").unlink()
    assert _tag(skyward, clone / "small.toml") != tag


def test_what_a_lock_file_holds(skyward: Skyward, wheels: Path, file: Path) -> None:
    """The same text each time; no path of this machine, and no address of an index that only it has."""
    (wheels.parent / "pip.conf").write_text(f"[global]\nindex-url = {make_index(wheels)}\n")
    skyward("lock", file)
    text = file.with_suffix(".lock").read_text()
    file.with_suffix(".lock").unlink()
    skyward("lock", file, "--upgrade")
    assert str(wheels.parent) not in text
    assert file.with_suffix(".lock").read_text() == text


def test_a_lock_that_no_longer_fits(skyward: Skyward, file: Path) -> None:
    """It is refused with what was changed and the command to run; `--check` says so to machines."""
    assert skyward("lock", file, "--check")[0] == 1
    skyward("lock", file)
    assert skyward("lock", file, "--check")[:2] == (0, "images/small.lock: fits\n")
    file.write_text(TOML.replace('"top"', '"leaf"'))
    status, _, err = skyward("build", file)
    assert status == 2
    assert "does not fit the image any more: +requirement leaf, -requirement top." in err
    assert "Lock it: `skyward lock images/small.toml`" in err
    status, out, _ = skyward("lock", file, "--check", "--json")
    assert (status, json.loads(out)["state"]) == (1, "stale")
    skyward("lock", file)
    assert skyward("lock", file, "--check")[0] == 0


def test_versions_are_kept(skyward: Skyward, wheels: Path, file: Path) -> None:
    """Also where the image asks for more, until an upgrade is asked for: of all packages, or of one."""
    skyward("lock", file)
    for name in ("leaf", "top", "more"):
        make_wheel(wheels, name, "2.0")
    assert skyward("lock", file)[1].endswith("unchanged\n")
    file.write_text('pip = ["top", "more"]\n')
    assert skyward("lock", file)[1].splitlines()[1:] == ["  +more==2.0"]
    assert skyward("lock", file, "-P", "Leaf")[1].splitlines()[1:] == ["  -leaf==1.0 +leaf==2.0"]
    status, _, err = skyward("build", file, "--upgrade")
    assert (status, "`skyward lock --upgrade images/small.toml`" in err) == (2, True)
    assert "-top==1.0 +top==2.0" in skyward("lock", file, "--upgrade")[1]


def test_a_lock_is_for_platforms(skyward: Skyward, file: Path) -> None:
    """Those that were asked for once are locked together; for another the command is said."""
    skyward("lock", file)
    status, _, err = skyward("build", file, "--platform", "linux/arm64", "--check")
    assert status == 2
    assert "it is for linux/amd64, Python 3.11. Lock it: `skyward lock --platform linux/arm64 images/small.toml`" in err
    assert "linux/arm64" in skyward("lock", file, "--platform", "linux/arm64")[1]
    file.write_text('pip = ["leaf"]\n')
    assert len(skyward("lock", file)[1].splitlines()) == 4  # each of the platforms, and what went
    assert skyward("build", file, "--platform", "linux/arm64", "--check")[0] == 1


def test_another_base(skyward: Skyward, engine: FakeEngine, file: Path) -> None:
    """A base that only an engine knows has to be the one that was locked."""
    skyward("lock", file)
    engine.images["base:1"] |= {"Id": "sha256:other"}
    status, _, err = skyward("build", file, "--check")
    assert (status, "was made with another base: 'base:1' is" in err) == (2, True)
    skyward("lock", file)
    assert skyward("build", file, "--check")[0] == 1


def test_a_pulled_base_stays_where_its_tag_moves(skyward: Skyward, engine: FakeEngine, file: Path) -> None:
    """The image is built from the digest that was locked, until an upgrade is asked for."""
    one, other = (f"base@sha256:{digit * 64}" for digit in "12")
    engine.images["base:1"] |= {"RepoDigests": [one]}
    engine.images[one] = engine.images["base:1"]
    skyward("lock", file)
    tag = _tag(skyward, file)
    engine.images["base:1"] = {**engine.images["base:1"], "RepoDigests": [other], "Id": "sha256:other"}
    assert _tag(skyward, file) == tag
    skyward("lock", file, "--upgrade")
    assert _tag(skyward, file) != tag


def test_images_of_scripts_name_their_lock(skyward: Skyward, file: Path) -> None:
    """So that the pool finds it as well; what names one that is not there is refused."""
    script = file.with_name("train.py")
    script.write_text('import skyward as sky\nimage = sky.Image(pip=["top"])\n')
    status, _, err = skyward("lock", script)
    assert (status, "sky.Image(lock='train.lock')" in err) == (2, True)
    script.write_text('import skyward as sky\nimage = sky.Image(pip=["top"], lock="train.lock")\n')
    assert "lock names train.lock, which does not exist" in skyward("build", script)[2]
    assert skyward("lock", script)[:2] == (0, "train.lock: 2 packages for linux/amd64, Python 3.11, written\n")
    assert skyward("build", script, "--check")[0] == 1
