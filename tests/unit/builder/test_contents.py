"""What tags stand for: digests of content that engines and registries agree on, and the notes of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.store import (
    ImageFacts,
    facts_of,
    forget_use,
    is_known,
    known_contents,
    last_use,
    note_content,
    note_use,
)

LAYERS = ["sha256:1", "sha256:2"]
# of one image: from engine 20.10, from a newer one with images in containerd, from a registry
OLD = {"Hostname": "", "Env": ["A=1"], "Cmd": None, "Image": "", "Volumes": None, "Labels": {"a": "1", "b": "2"}}
NEW = {"Labels": {"b": "2", "a": "1"}, "Env": ["A=1"], "Hostname": "x", "AttachStdin": False}
STORED = {"Env": ["A=1"], "Labels": {"a": "1", "b": "2"}, "OnBuild": []}


def _digest(config: dict[str, Any], layers: list[str] = LAYERS, architecture: str = "amd64") -> str:
    found = {"Id": "1", "Os": "linux", "Architecture": architecture, "RootFS": {"Layers": layers}, "Config": config}
    return facts_of(found).content


def test_whoever_has_it_says_the_same() -> None:
    """The same layers and settings have one digest, in whatever form they are told."""
    assert _digest(OLD) == _digest(NEW) == _digest(STORED)


@pytest.mark.parametrize(
    "other",
    [
        _digest({**OLD, "Env": ["A=2"]}),
        _digest({**OLD, "User": "nobody"}),
        _digest({**OLD, "Entrypoint": ["/evil"]}),
        _digest(OLD, layers=LAYERS[::-1]),
        _digest(OLD, layers=LAYERS[:1]),
        _digest(OLD, architecture="arm64"),
    ],
)
def test_what_runs_decides(other: str) -> None:
    """Other layers, another order of them, other settings: another digest."""
    assert other != _digest(OLD)


def test_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag may stand for several builds; an image is known by its content or its id, and by nothing else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tag = "skyward:sky-1-0123456789abcdef"
    assert not is_known(tag, ImageFacts(id="sha256:i"))
    note_content(tag, "sha256:c", "sha256:i")
    note_content(tag, "sha256:d")
    assert known_contents(tag) == {"sha256:c", "sha256:d", "sha256:i"}
    assert is_known(tag, ImageFacts(id="sha256:i"))
    assert is_known(tag, ImageFacts(id="sha256:other", content="sha256:d"))
    assert not is_known(tag, ImageFacts(id="sha256:other"))
    assert not is_known(tag, None)
    assert not is_known("skyward:sky-1-fedcba9876543210", ImageFacts(id="sha256:i"))
    assert sorted(path.suffix for path in (tmp_path / "skyward/contents").iterdir()) == [".json"]


def test_a_use_is_remembered_until_the_image_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever repository its tag stands in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tag = "skyward:sky-1-0123456789abcdef"
    assert last_use(tag) is None
    note_use(tag)
    assert last_use("host:5000/team/x:sky-1-0123456789abcdef") == pytest.approx(time.time(), abs=5)
    assert last_use("skyward:sky-1-fedcba9876543210") is None
    forget_use(tag)
    forget_use(tag)
    assert last_use(tag) is None
