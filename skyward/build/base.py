"""From an image's description to its plan: finds the base image, reads the runner's files, compiles."""

from __future__ import annotations

import os
from dataclasses import dataclass

from skyward.build.runner import runner_digest
from skyward.build.store import ImageFacts, ImageStore
from skyward.errors import ImageNotFoundError
from skyward.image import Plan, compile, default_base  # noqa: A004 - the compiler's own name
from skyward.model.image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image as a build uses it: the reference for FROM, and the digest that stands for its content."""

    reference: str
    digest: str


def plan_for(image: Image, store: ImageStore, *, python: str, platform: str) -> Plan:
    """Compile an image against the base that an engine has or can pull.

    Args:
        image: the description, plugins applied. Without a base of its own it starts from what SKYWARD_BASE names,
            else from the official slim image of the Python version.
        store: the images of the engine.
        python: the client's minor version, such as "3.11".
        platform: of the nodes, such as "linux/amd64".

    Raises:
        ConfigError: the image asks for another Python version.
        ImageNotFoundError: the base is neither on the engine nor in its registry.
    """
    base = resolve_base(image.base or os.environ.get("SKYWARD_BASE") or default_base(python), store)
    return compile(
        image,
        python=python,
        platform=platform,
        base=base.reference,
        base_digest=base.digest,
        runner_digest=runner_digest(),
    )


def resolve_base(reference: str, store: ImageStore) -> Base:
    """Find a base image on the engine, or pull it.

    Raises:
        ImageNotFoundError: it is neither on the engine nor in its registry.
    """
    facts = store.inspect(reference)
    if facts is None:
        try:
            store.pull(reference)
        except ImageNotFoundError as error:
            raise ImageNotFoundError(
                f"The base image {reference!r} is neither on the engine nor can it be pulled. {error} "
                "Where no registry can be reached, set SKYWARD_BASE or Image(base=...) to an image the engine has."
            ) from error
        facts = store.inspect(reference)
    if facts is None:
        raise ImageNotFoundError(
            f"The engine pulled {reference!r} but does not have it under that name. Give it a tag."
        )
    return _pinned(reference, facts)


def _pinned(reference: str, facts: ImageFacts) -> Base:
    """The base by digest if its own registry gave one; an image made on this engine is known by its id only."""
    name = _repository(reference)
    for known in facts.repo_digests:
        repository, _, digest = known.partition("@")
        if _full_name(repository) == _full_name(name):
            return Base(reference=f"{name}@{digest}", digest=digest)
    return Base(reference=reference, digest=facts.id)


def _repository(reference: str) -> str:
    """A reference without tag and digest."""
    name = reference.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _full_name(repository: str) -> str:
    """A repository with the registry and the folder that Docker leaves out."""
    first, slash, _ = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return repository.removeprefix("index.").replace(
            "docker.io/", "docker.io/library/", int(repository.count("/") == 1)
        )
    return f"docker.io/{repository}" if slash else f"docker.io/library/{repository}"
