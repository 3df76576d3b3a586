"""What a build needs from an engine: to know an image, pull one, look into one. Implemented by `skyward.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol


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
        config: what it says of how it is run, with the names that engines give that; None where it was not asked for.
        content: digest of what runs, comparable between engines, see `skyward.build.contents`; "" where it was not
            asked for.
    """

    id: str
    repo_digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    platform: str = ""
    config: Mapping[str, Any] | None = None
    content: str = ""


class ImageFiles(Protocol):
    """The files of one image."""

    def find(self, path: str) -> str | None:
        """Where the path of a file leads, all links followed; None if there is no file."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content of a file, links followed; None if there is none."""
        ...


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

    def files(self, ref: str) -> AbstractContextManager[ImageFiles]:
        """The files of an image that the engine has, for the time of a `with` block; nothing of it is run.

        Raises:
            EngineError: the engine refuses.
        """
        ...
