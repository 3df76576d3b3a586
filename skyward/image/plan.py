"""What the compiler makes: a plan of layers, its Dockerfile, and the identity that names the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from skyward.model.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One instruction of the Dockerfile.

    Attributes:
        stage: the build stage it belongs to.
        step: its number among the stage's steps, as BuildKit counts them; None for instructions that run nothing.
        name: what it does, in a few words for people.
        text: the instruction as it stands in the Dockerfile.
        origin: who asked for it: a field of the user's image, a plugin, skyward itself. Never part of the identity.
    """

    stage: str
    step: int | None
    name: str
    text: str
    origin: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a build needs, and the name of what comes out.

    Attributes:
        image: the description this was compiled from, plugins applied.
        python: minor version of Python in the image.
        platform: OCI platform such as "linux/amd64".
        base: reference that stands in FROM.
        dockerfile: the text.
        layers: the instructions with who asked for them.
        files: small text files of the build context, by path.
        build_args: build arguments the text needs, by name.
        identity: SHA-256 (hex) over everything that decides the image's content; origins are not in it.
        tag: the image's local name, `skyward:sky-<epoch>-<first 16 hex of the identity>`.
        labels: labels of the image, a read-only mapping.
    """

    image: Image
    python: str
    platform: str
    base: str
    dockerfile: str = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    files: tuple[tuple[str, str], ...] = field(repr=False)
    build_args: tuple[tuple[str, str], ...] = field(repr=False)
    identity: str
    tag: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, hash=False)
