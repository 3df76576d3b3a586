"""`Plan`, the compiler's result: layers, their Dockerfile, and the identity that names the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from skyward.image.base import BaseFacts
from skyward.image.lock import Lock
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
class Copied:
    """Files of this machine that a build copies into its context.

    Attributes:
        folder: where they go in the context.
        digest: SHA-256 (hex) over their paths, modes and contents.
        target: what of `local/` to install, where they are a package; "" for code.
        is_project: whether they are the project that the image is for, which has a layer of its own.
        entry: what the image calls them, where they are a package.
        files: path below `folder`, and where each file is on this machine. Never part of the identity.
    """

    folder: str
    digest: str
    target: str = ""
    is_project: bool = False
    entry: str = field(default="", compare=False)
    files: tuple[tuple[str, str], ...] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseBuild:
    """A base that is built first, from a Dockerfile of the user's.

    Attributes:
        dockerfile: where it is on this machine.
        target: its stage to build; None for the last.
        platform: it is built for.
        digest: SHA-256 (hex) over the Dockerfile, the stage, the platform and the files.
        tag: the name of the image it becomes.
        files: what it may copy: path in the context, and where each file is on this machine.
        parent: the image that it is built from in the end; "" where that is unknown.
        user: the user that its text names; "" for none, or for one that only the image it starts from names.
    """

    dockerfile: str = field(compare=False)
    target: str | None
    platform: str
    digest: str
    tag: str
    files: tuple[tuple[str, str], ...] = field(compare=False, repr=False)
    parent: str = ""
    user: str = ""


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
        copied: files of this machine that go into the build context.
        build_args: build arguments the text needs, by name.
        lock: the packages that its requirements came to; None while they are not locked.
        base_build: how its base is made, if from a Dockerfile.
        given: what its base has; None while that is not known.
        inputs: everything that decides the image's content, by name, each as canonical JSON.
        identity: SHA-256 (hex) over the inputs; origins are not in it.
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
    copied: tuple[Copied, ...] = field(default=(), repr=False)
    build_args: tuple[tuple[str, str], ...] = field(repr=False)
    lock: Lock | None = field(default=None, repr=False)
    base_build: BaseBuild | None = None
    given: BaseFacts | None = field(default=None, repr=False)
    inputs: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    identity: str
    tag: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, hash=False)

    @property
    def user(self) -> str:
        """The user that the image names; "" for none. Of a base that is to be built, what its Dockerfile tells."""
        if self.given is not None:
            return self.given.user_in_the_end
        return self.base_build.user if self.base_build else ""
