"""The images of a Docker engine in the form the build room asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from skyward.build.contents import content_digest
from skyward.build.store import ImageFacts
from skyward.engine import Images


class EngineImages:
    """An `ImageStore` over one engine."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def inspect(self, ref: str) -> ImageFacts | None:
        """Facts on the image of that name or id; None if the engine does not have it."""
        found = self._images.inspect(ref)
        if found is None:
            return None
        return facts_of(found)

    def history(self, ref: str) -> Sequence[tuple[str, int]]:
        """The instructions an image was made by, the first one first, and the bytes each one added."""
        return [(str(step.get("CreatedBy", "")), int(step.get("Size", 0))) for step in self._images.history(ref)]

    def pull(self, ref: str) -> None:
        """Fetch an image from its registry; raises ImageNotFoundError with the registry's own words."""
        self._images.pull(ref)

    def push(self, image: str, repository: str, tag: str, auth: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """Push an image as `repository:tag`; the engine's messages as they come."""
        return self._images.push(image, repository, tag, auth)


def facts_of(found: Mapping[str, Any]) -> ImageFacts:
    """An engine's description of an image, as facts."""
    config = found.get("Config") or {}
    variant = f"/{found['Variant']}" if found.get("Variant") else ""
    layers = (found.get("RootFS") or {}).get("Layers") or ()
    return ImageFacts(
        id=found["Id"],
        repo_digests=tuple(found.get("RepoDigests") or ()),
        labels=config.get("Labels") or {},
        size=found.get("Size", 0),
        platform=f"{found['Os']}/{found['Architecture']}{variant}",
        user=config.get("User") or "",
        content=content_digest(layers, config, found["Os"], found["Architecture"]),
    )


class ListedImages(EngineImages):
    """The same, for a look at what is there: one listing answers for every image in it.

    It answers the first question about each image; further ones, and those about images that it does not have, go to
    the engine one by one, so that what is built or pulled meanwhile is found.
    """

    def __init__(self, images: Images) -> None:
        super().__init__(images)
        self._known: dict[str, ImageFacts] | None = None

    def inspect(self, ref: str) -> ImageFacts | None:
        """Facts on the image of that name or id; None if the engine does not have it."""
        if self._known is None:
            self._known = {}
            for found in self._images.listed():
                facts = ImageFacts(
                    id=found["Id"],
                    repo_digests=tuple(found.get("RepoDigests") or ()),
                    labels=found.get("Labels") or {},
                    size=found.get("Size", 0),
                )
                names = [*(found.get("RepoTags") or ()), *facts.repo_digests, facts.id]
                self._known |= dict.fromkeys(names, facts)
        return self._known.pop(ref, None) or super().inspect(ref)
