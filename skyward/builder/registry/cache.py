"""Build caches in a registry: builders that have no layers yet take those that others have pushed.

Beside an image's own tag a push leaves a second one, `cache-<architecture>`, that moves from build to build. Builders
that can put every step's layers under it do so while they build; for the others it is the last image pushed, whose
configuration says which step made which layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from skyward.builder.registry.client import ImageManifest, RegistryClient
from skyward.builder.registry.reference import Reference, parse_reference

_INLINE = "moby.buildkit.cache.v0"  # where an image's configuration tells of its steps
_WHOLE = "mode=max,image-manifest=true,oci-mediatypes=true,ignore-error=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """The registry cache of a build: layers are taken from it and put there.

    Attributes:
        place: the repository, with the tag of the cache.
        is_there: whether the registry has it yet.
        is_whole: whether the builder puts all of its layers there; else they go with the image that is pushed.
    """

    place: Reference
    is_there: bool
    is_whole: bool

    @property
    def words(self) -> list[str]:
        """Options of a build, which an old docker command and buildx both take."""
        name = f"{self.place.name}:{self.place.tag}"
        found = ["--cache-from", name] if self.is_there else []
        if self.is_whole:
            return [*found, "--cache-to", f"type=registry,ref={name},{_WHOLE}"]
        return [*found, "--build-arg", "BUILDKIT_INLINE_CACHE=1"]


def shared_cache(target: str, platform: str, *, is_whole: bool) -> SharedCache:
    """The cache of the repository that an image will be pushed to.

    Args:
        target: where the image goes.
        platform: of the image, such as "linux/amd64".
        is_whole: whether the builder can push layers by itself: buildx with images in containerd can.

    Raises:
        RegistryError: the registry cannot be reached or refuses.
    """
    place = _place(parse_reference(target), platform)
    with RegistryClient(place) as client:
        is_there = client.digest_of(place.tag) is not None
    return SharedCache(place=place, is_there=is_there, is_whole=is_whole)


def leave_cache(pushed: ImageManifest, reference: Reference, platform: str) -> None:
    """Make an image that was pushed the cache of its repository, if it tells of its steps; no layer is sent.

    Raises:
        RegistryError: the registry refuses.
    """
    if _INLINE not in pushed.config:  # built without cache metadata: keep the cache that is there
        return
    place = _place(reference, platform)
    with RegistryClient(place, "pull,push") as client:
        manifest = client.manifest(pushed.digest)
        if manifest is not None:
            client.put_manifest(place.tag, manifest.media_type, manifest.content)


def _place(reference: Reference, platform: str) -> Reference:
    return replace(reference, tag="cache-" + "-".join(platform.split("/")[1:]), digest="")
