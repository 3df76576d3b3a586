"""`skyward image`: what is shown and removed, and what is not touched."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from skyward.builder.store import last_use, note_use
from tests.unit.cli.conftest import Skyward
from tests.unit.engine.fake import FakeEngine

DAY = 86400.0


def _own(engine: FakeEngine, word: str, *, days: float = 0, repository: str = "skyward", size: int = 1000) -> str:
    """An image of ours, made some days ago."""
    identity = word * (64 // len(word))
    tag = f"{repository}:sky-1-{identity[:16]}"
    engine.add(tag, labels={"skyward.image": identity}, created=time.time() - days * DAY, size=size)
    return tag


def _used(tag: str, tmp_path: Path, days: float) -> None:
    note_use(tag)
    moment = time.time() - days * DAY
    os.utime(tmp_path / "cache/skyward/used" / tag.rpartition(":")[2], (moment, moment))


def test_only_ours_are_listed(skyward: Skyward, engine: FakeEngine) -> None:
    """Neither images without label, nor what was built on one of ours and inherited it."""
    own, pushed = _own(engine, "ab", size=12_345_678), _own(engine, "cd", repository="host:5000/team/x")
    engine.add("foreign:1")
    engine.add("child:1", labels={"skyward.image": "ab" * 32})
    engine.add("skyward:sky-1-0000000000000000", labels={"skyward.image": "ab" * 32})

    status, out, _ = skyward("image", "ls")

    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["TAG", "SIZE", "BUILT", "LAST", "USED", "SOURCE"]
    assert {line[0] for line in lines[1:]} == {own, pushed}
    assert next(line[1:3] for line in lines if line[0] == own) == ["12.3", "MB"]


def test_an_image_with_two_names(skyward: Skyward, engine: FakeEngine) -> None:
    """As a push leaves it: one line, by its local name; by either name all is removed. `skyward:` may be left out."""
    for name in (0, 1):
        tag = _own(engine, "ab")
        other = f"host:5000/team/x:{tag.rpartition(':')[2]}"
        engine.images = {other: engine.images[tag], **engine.images}
        note_use(tag)

        lines = skyward("image", "ls")[1].splitlines()[1:]
        assert [line.split()[0] for line in lines] == [tag]
        assert json.loads(skyward("image", "ls", "--json")[1])["also"] == [other]
        status, out, _ = skyward("image", "rm", (tag.removeprefix("skyward:"), other)[name])

        assert (status, out) == (0, f"{tag} removed\n")
        assert last_use(tag) is None
        assert not {tag, other} & {*engine.images}


@pytest.mark.parametrize("foreign", ["foreign:1", "child:1", "none:1"])
def test_what_is_not_ours_is_refused_as_a_whole(skyward: Skyward, engine: FakeEngine, foreign: str) -> None:
    """One wrong name, and nothing at all is removed."""
    own = _own(engine, "ab")
    engine.add("foreign:1")
    engine.add("child:1", labels={"skyward.image": "ab" * 32})

    status, _, err = skyward("image", "rm", own, foreign)

    assert status == 2
    assert f"Nothing was removed: {foreign} is no image that skyward built" in err
    assert own in engine.images
    assert not [request for request in engine.requests if request.startswith("DELETE")]


def test_an_image_in_use_stays(skyward: Skyward, engine: FakeEngine) -> None:
    """`rm` fails with the reason; `prune` goes on."""
    tag, other = _own(engine, "ab", days=50), _own(engine, "cd", days=50)
    engine.in_use = {tag}

    status, _, err = skyward("image", "rm", tag)
    assert status == 4
    assert "is needed by a container" in err
    assert skyward("image", "prune")[:2] == (0, f"{other} removed\n1 image removed\n")
    assert tag in engine.images


@pytest.mark.parametrize(
    ("options", "removed"),
    [("", "ef"), ("--older-than 36h", "cd ef"), ("--keep 1", "cd ef"), ("--keep 2 --older-than 1d", "ef")],
)
def test_pruning(skyward: Skyward, engine: FakeEngine, options: str, removed: str, tmp_path: Path) -> None:
    """Age counts from the last use; never is anything else removed."""
    tags = {word: _own(engine, word, days=days) for word, days in {"ab": 40, "cd": 10, "ef": 40}.items()}
    _used(tags["ab"], tmp_path, days=0)
    engine.add("foreign:1", created=0)
    engine.add("child:1", labels={"skyward.image": "ef" * 32}, created=0)

    assert skyward("image", "prune", *options.split())[0] == 0
    assert set(tags.values()) - set(engine.images) == {tags[word] for word in removed.split()}
    assert {"foreign:1", "child:1", "base:1"} <= set(engine.images)


def test_everything_is_told_as_json(skyward: Skyward, engine: FakeEngine) -> None:
    """One object per line, with what the image was used by last."""
    own, other = _own(engine, "ab", size=12), _own(engine, "cd", days=1)
    note_use(own, "/home/me/train.py")
    told = [json.loads(line) for line in skyward("image", "ls", "--json")[1].splitlines()]
    assert [(each["event"], each["tag"], each["source"]) for each in told] == [
        ("image", own, "/home/me/train.py"),
        ("image", other, None),
    ]
    assert told[0]["size"] == 12
    assert "/home/me/train.py" in skyward("image", "ls")[1]
    engine.in_use = {other}
    status, out, err = skyward("image", "rm", "--json", own, other)
    assert (status, [json.loads(line)["event"] for line in out.splitlines()]) == (4, ["removed", "stays"])
    assert f"{other} cannot be removed" in err


@pytest.mark.parametrize("words", [["rm"], ["prune", "--keep", "0"]])
def test_a_dry_run_removes_nothing(skyward: Skyward, engine: FakeEngine, words: list[str]) -> None:
    """And says what would go."""
    own = _own(engine, "ab", size=12_000_000)
    words = [*words, own] if words == ["rm"] else words
    assert f"{own} would be removed (12 MB)\n" in skyward("image", *words, "--dry-run")[1]
    told = json.loads(skyward("image", *words, "--dry-run", "--json")[1])
    assert told == {"event": "would-remove", "tag": own, "size": 12_000_000}
    assert own in engine.images
    assert not [request for request in engine.requests if request.startswith("DELETE")]
