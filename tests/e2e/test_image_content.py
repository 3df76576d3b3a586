"""Images are known by their content: whatever else has our tag, on an engine or in a registry, does not run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from skyward.builder.events import Event
from skyward.builder.plans import ensure, plan_for
from skyward.builder.registry.pushing import push
from skyward.builder.registry.reference import with_tag
from skyward.builder.store import EngineImages, note_content
from skyward.delivery.deliver import put_in_registry
from skyward.errors import ImageError
from skyward.image import Plan
from skyward.model.image import Image
from skyward.providers.base import PoolRequest
from tests.e2e.building import PYTHON
from tests.e2e.functions import lengths
from tests.printed import Printed
from tests.standin import launch

REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
PLATFORM = "linux/amd64"


@pytest.fixture
def image() -> Image:
    """An image that nobody has built, told by a variable in it."""
    return Image(env={"MARK": secrets.token_hex(5)})


@pytest.fixture
def store() -> EngineImages:
    found = sky.Docker().images
    assert isinstance(found, EngineImages)
    return found


@pytest.fixture
def plan(image: Image, store: EngineImages, engine: Any) -> Iterator[Plan]:
    """Its plan; the image is removed with the test."""
    plan = plan_for(image, store, python=PYTHON, platform=PLATFORM)
    yield plan
    if store.inspect(plan.tag):
        engine.images.remove(plan.tag, force=True)


def _usurp(engine: Any, tag: str) -> str:
    """Give our tag to another image, as anybody may who may use the engine; that image's id."""
    base = engine.images.get(os.environ["SKYWARD_BASE"])
    assert base.tag(*tag.split(":"))
    found: str = engine.images.get(tag).id
    return found


@pytest.mark.parametrize("built_before", [False, True])
def test_a_pool_replaces_another_image(
    engine: Any, image: Image, plan: Plan, store: EngineImages, printed: Printed, built_before: bool
) -> None:
    """The right image runs, whether or not it had been built before the tag was moved, and one line says so."""
    if built_before:
        ensure(plan, store, print)
    other = _usurp(engine, plan.tag)
    printed.read()
    for number in range(2):
        with sky.ComputePool(sky.Docker(), image=image) as pool:
            assert lengths(["MARK"]) >> pool == {"MARK": 10}
        lines = [line for line in printed.read().err.splitlines() if "another image" in line]
        assert len(lines) == (number == 0)
        if lines:
            assert (
                f"{plan.tag} was another image on the engine ({other[:19]}); the built one takes its place" in lines[0]
            )
    assert engine.images.get(plan.tag).id != other


def test_nothing_starts_from_a_tag_that_was_moved(engine: Any, image: Image, plan: Plan) -> None:
    """Also if it is moved after the image was prepared: the start of a node fails, and leaves nothing."""
    provider = sky.Docker()
    pool = secrets.token_hex(4)
    allocation = provider.open(PoolRequest(pool_id=pool))
    (host,) = allocation.acquire()
    try:
        with sky.ComputePool(provider, image=image):
            pass
        _usurp(engine, plan.tag)
        with pytest.raises(ImageError, match=rf"has another image as {plan.tag} \(sha256:\w+\) than the one"):
            host.start(launch(pool, 0, "serve", image=plan.tag))
        assert [found for found in provider.find() if found["pool"] == pool] == []
    finally:
        allocation.close()


def test_a_registry_that_has_another_image(
    engine: Any, plan: Plan, store: EngineImages, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """What was built goes to the registry in the place of what has its tag there, and one line says so.

    A client that has built nothing takes what the registry has, and then holds on to that.
    """
    if not REGISTRY:
        pytest.skip("`make engine` has made no registry here")
    repository = f"{REGISTRY}/test/{secrets.token_hex(6)}"
    target = with_tag(repository, plan.tag.rpartition(":")[2])
    said: list[Event] = []
    say: Callable[[Event], None] = said.append

    def supplied() -> Any:
        return put_in_registry(plan, repository, store, say)

    try:
        ensure(plan, store, say)
        ours = store.inspect(plan.tag)
        assert ours
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of a client that has seen nothing of the registry yet
        other = push(os.environ["SKYWARD_BASE"], target, engine=store.images, report=say)
        engine.images.remove(target)
        note_content(plan.tag, ours.content, ours.id)
        first = supplied()
        assert first != other
        assert [str(each) for each in said if "not known here" in str(each)]
        said.clear()
        assert supplied() == first
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        assert supplied() == first
        assert said == []
    finally:
        engine.images.remove(target, force=True)
