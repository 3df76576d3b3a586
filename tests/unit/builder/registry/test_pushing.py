"""Images are found in registries and pushed there by an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.builder.events import Event
from skyward.builder.registry.pushing import find, push, shared_cache
from skyward.builder.store import known_contents, note_content
from skyward.engine import Images, find_engine
from skyward.errors import ConfigError
from tests.unit.engine.fake import FakeEngine, fake_engine

TAG, TARGET = "skyward:sky-1", "r.io/team/x:sky-1"
OURS, OTHER = {"aux": {"Digest": "sha256:ours"}}, "sha256:other"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as engine:
        engine.add(TAG)
        yield engine


@pytest.fixture
def images(engine: FakeEngine) -> Images:
    return Images(find_engine(engine.url))


def test_what_was_never_built_here_is_accepted(engine: FakeEngine, images: Images) -> None:
    """And from then on no other is."""
    said: list[Event] = []
    assert find(TAG, TARGET, images, said.append) is None
    engine.registry[TARGET] = OTHER
    assert find(TAG, f"http://{TARGET}", images, said.append) == f"r.io/team/x@{OTHER}"
    engine.registry[TARGET] = "sha256:third"
    assert said == []
    assert find(TAG, TARGET, images, said.append) is None
    assert "sha256:third" in str(said)


def test_what_was_built_here_is_pushed(engine: FakeEngine, images: Images) -> None:
    """In the place of another image; its digest is known afterwards."""
    engine.pushes, engine.registry[TARGET] = [OURS], OTHER
    note_content(TAG, "content", "sha256:id")
    assert find(TAG, TARGET, images, print) is None
    assert push(TAG, TARGET, engine=images, report=print) == "r.io/team/x@sha256:ours"
    assert known_contents(TAG) == {"content", "sha256:id", "sha256:ours"}
    engine.registry[TARGET] = "sha256:ours"
    assert find(TAG, TARGET, images, print) == "r.io/team/x@sha256:ours"


def test_a_digest_is_no_destination(images: Images) -> None:
    """It follows from the content."""
    with pytest.raises(ConfigError, match="Give a tag"):
        push(TAG, f"r.io/x@sha256:{'0' * 64}", engine=images, report=print)


@pytest.mark.parametrize(("platform", "tag"), [("linux/amd64", "cache-amd64"), ("linux/arm/v7", "cache-arm-v7")])
def test_layers_for_other_builders(
    engine: FakeEngine, images: Images, monkeypatch: pytest.MonkeyPatch, platform: str, tag: str
) -> None:
    """A second tag has the last image, and leaves no name on the engine; a refusal is only reported."""
    monkeypatch.setattr(Images, "in_containerd", lambda _: False)
    inline = ["--build-arg", "BUILDKIT_INLINE_CACHE=1"]
    assert shared_cache(TARGET, platform, images).words == inline
    engine.registry[f"r.io/team/x:{tag}"], engine.pushes = OTHER, [OURS]
    cache = shared_cache(TARGET, platform, images)
    assert cache.words == ["--cache-from", f"r.io/team/x:{tag}", *inline]

    said: list[Event] = []
    cache.leave(TAG, images, said.append)
    assert said == []
    assert list(engine.images) == [TAG]
    engine.pushes = [{"error": "denied"}]
    cache.leave(TAG, images, said.append)
    assert "denied" in str(said)
