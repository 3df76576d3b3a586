"""The cache beside the images of a repository: what a build is told of it, and what a push leaves there."""

from __future__ import annotations

import json

import pytest

from skyward.builder.registry.client import ImageManifest, RegistryClient, find_image
from skyward.builder.registry.pushing import leave_cache, shared_cache
from skyward.builder.registry.reference import Reference, parse_reference
from skyward.errors import RegistryError
from tests.unit.builder.registry.server import RegistryServer

AMD64 = "linux/amd64"


def test_a_first_build_leaves_and_takes_nothing_that_is_not_there(server: RegistryServer) -> None:
    """An image to be pushed tells of its steps; a tag that does not exist is not asked for."""
    cache = shared_cache(f"{server.host}/x:t", AMD64, is_whole=False)

    assert cache.words == ["--build-arg", "BUILDKIT_INLINE_CACHE=1"]


@pytest.mark.parametrize(("platform", "tag"), [(AMD64, "cache-amd64"), ("linux/arm64/v8", "cache-arm64-v8")])
def test_a_later_build_starts_from_what_is_there(server: RegistryServer, platform: str, tag: str) -> None:
    """Each architecture has its own."""
    server.add_image(tag)

    cache = shared_cache(f"{server.host}/x:t", platform, is_whole=False)

    assert cache.words[:2] == ["--cache-from", f"{server.host}/x:{tag}"]


def test_a_builder_that_can_puts_all_its_layers_there(server: RegistryServer) -> None:
    """Of all stages, in the form that every registry takes; and a build does not fail over it."""
    server.add_image("cache-amd64")

    words = shared_cache(f"{server.host}/x:t", AMD64, is_whole=True).words

    assert words[:2] == ["--cache-from", f"{server.host}/x:cache-amd64"]
    assert words[2] == "--cache-to"
    assert f"type=registry,ref={server.host}/x:cache-amd64,mode=max," in words[3]
    assert "ignore-error=true" in words[3]
    assert "BUILDKIT_INLINE_CACHE=1" not in words


def test_a_registry_that_cannot_be_asked() -> None:
    """Stops, as it does for the image itself."""
    with pytest.raises(RegistryError, match="cannot be asked"):
        shared_cache("127.0.0.1:9/x:t", AMD64, is_whole=False)


def _found(server: RegistryServer, reference: Reference) -> ImageManifest:
    with RegistryClient(reference) as client:
        found = find_image(client, reference.tag, AMD64)
    assert found
    return found


@pytest.mark.parametrize("tells", [True, False])
def test_a_push_leaves_a_cache_where_the_image_tells_of_its_steps(server: RegistryServer, tells: bool) -> None:
    """No layer is sent for it; an image that tells of none does not take the place of one that does."""
    server.add_image("t", **({"moby.buildkit.cache.v0": "steps"} if tells else {}))
    reference = parse_reference(f"{server.host}/x:t")
    pushed = _found(server, reference)
    server.requests.clear()

    leave_cache(pushed, reference, AMD64)

    assert [path for method, path, _ in server.requests if "blobs" in path] == []
    kept = server.manifests.get("cache-amd64")
    assert (kept is not None) == tells
    assert not kept or json.loads(kept[1]) == dict(pushed.document)
