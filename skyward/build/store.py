"""What a build needs from an engine: to know an image, and to pull one. Implemented by `skyward.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What an engine says of an image it has.

    Attributes:
        id: the engine's own identifier, `sha256:...`: the digest of the image's configuration or, on engines that keep
            images in containerd, of its manifest.
        repo_digests: names under which a registry knows it, `repository@sha256:...`; empty for images made here.
        labels: its labels.
        size: bytes on the engine's disk.
        platform: such as "linux/amd64"; "" where it was not asked for.
        user: the user that it names; "" for none, and where it was not asked for.
        content: digest of what runs, comparable between engines, see `skyward.build.contents`; "" where it was not
            asked for.
    """

    id: str
    repo_digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    platform: str = ""
    user: str = ""
    content: str = ""


class ImageStore(Protocol):
    """The images of one engine."""

    def inspect(self, ref: str) -> ImageFacts | None:
        """Facts on the image of that name or id; None if the engine does not have it.

        Raises:
            EngineError: the engine does not answer or refuses.
        """
        ...

    def pull(self, ref: str) -> None:
        """Fetch an image from its registry.

        Raises:
            ImageNotFoundError: the registry has none, refuses it, or cannot be reached; it says which.
            EngineError: the engine does not answer.
        """
        ...
