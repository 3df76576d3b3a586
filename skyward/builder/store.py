"""The images of an engine as builds need them: inspect, pull, push, look into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skyward.builder.contents import content_digest
from skyward.builder.events import Report, note
from skyward.errors import ImageNotFoundError, RegistryError

if TYPE_CHECKING:
    from skyward.engine import Images
    from skyward.engine.images import ImageFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """An engine's description of an image.

    Attributes:
        id: the engine's own identifier, `sha256:...`: the digest of the image's configuration or, on engines that keep
            images in containerd, of its manifest.
        repo_digests: names under which a registry knows it, `repository@sha256:...`; empty for images made here.
        labels: its labels.
        size: bytes on the engine's disk.
        platform: such as "linux/amd64"; "" where it was not asked for.
        config: what it says of how it is run, with the names that engines give that; None where it was not asked for.
        content: digest of what runs, comparable between engines, see `skyward.builder.contents`; "" where it was not
            asked for.
    """

    id: str
    repo_digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    platform: str = ""
    config: Mapping[str, Any] | None = None
    content: str = ""


class EngineImages:
    """The images of one engine.

    Args:
        images: of the engine.
        report: receives notes of pulls; None for none.
    """

    def __init__(self, images: Images, report: Report | None = None) -> None:
        self._images = images
        self._report: Report = report or (lambda _: None)

    def inspect(self, ref: str) -> ImageFacts | None:
        """Facts on the image of that name or id; None if the engine does not have it. May raise EngineError."""
        found = self._images.inspect(ref)
        if found is None:
            return None
        return facts_of(found)

    def files(self, ref: str) -> AbstractContextManager[ImageFiles]:
        """The files of an image that the engine has, for the time of a `with` block; nothing of it is run."""
        return self._images.files(ref)

    def history(self, ref: str) -> Sequence[tuple[str, int]]:
        """The instructions an image was made by, the first one first, and the bytes each one added."""
        return [(str(step.get("CreatedBy", "")), int(step.get("Size", 0))) for step in self._images.history(ref)]

    def pull(self, ref: str) -> None:
        """Fetch an image from its registry, with this user's credentials for it.

        Raises:
            ConfigError: it is not the name of an image.
            ImageNotFoundError: the registry has none, refuses it, or cannot be reached; in its own words.
            RegistryError: it has stopped to answer, or credentials for it cannot be had.
            EngineError: the engine does not answer.
        """
        from skyward.builder.registry.auth import registry_credentials
        from skyward.builder.registry.http import Patience
        from skyward.builder.registry.reference import parse_reference

        reference = parse_reference(ref)
        failure: RegistryError | None = None
        try:
            credentials = registry_credentials(reference.registry)
        except RegistryError as error:  # matters only if the image is not for everybody
            credentials, failure = None, error
        auth = credentials.for_engine(reference.registry) if credentials else {}
        tagged = ref if "@" in ref or ref.endswith(f":{reference.tag}") else f"{ref}:{reference.tag}"
        self._report(note(f"pulling {tagged}"))
        try:
            self._images.pull(tagged, auth, Patience(reference, f"The engine's pull of {reference}", self._report))
        except ImageNotFoundError as error:
            if failure is None:
                raise
            raise RegistryError(
                f"{error} It was asked for without credentials, because: {failure.reason}", failure.remedy
            ) from error

    def push(
        self, image: str, repository: str, tag: str, auth: Mapping[str, str], waiting: Callable[[float], None]
    ) -> Iterator[Mapping[str, Any]]:
        """Push an image as `repository:tag`; gives the engine's messages. `waiting` is called while it is silent."""
        return self._images.push(image, repository, tag, auth, waiting)


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
        config=config,
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
