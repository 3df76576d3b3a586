"""From an image's description to its plan: reads files, finds the base, locks the requirements, compiles."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from skyward.build.copied import code_files, package_files
from skyward.build.dockerfile import base_build
from skyward.build.foundation import check_base, facts_of_base
from skyward.build.lock import Request, lock_requirements
from skyward.build.requirement_files import resolve_files
from skyward.build.runner import runner_digest
from skyward.build.store import ImageFacts, ImageStore
from skyward.errors import ImageNotFoundError
from skyward.image import BaseBuild, Plan, check_python, compile, default_base  # noqa: A004 - the compiler's own name
from skyward.model.image import Dockerfile, Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A base image as a build uses it: the reference for FROM, and the digest that stands for its content.

    With what the engine says of it; None while it is to be built first.
    """

    reference: str
    digest: str
    facts: ImageFacts | None = None


def plan_for(
    image: Image, store: ImageStore, *, python: str, platform: str, root: Path | None = None, upgrade: bool = False
) -> Plan:
    """Compile an image: with its files read, its requirements locked, and against the base an engine has or can pull.

    Args:
        image: the description, plugins applied. Without a base of its own it starts from what SKYWARD_BASE names,
            else from the official slim image of the Python version.
        store: the images of the engine.
        python: the client's minor version, such as "3.11".
        platform: of the nodes, such as "linux/amd64".
        root: what the image's relative paths are relative to; None for the working directory.
        upgrade: lock anew, and take the newest versions that are allowed.

    Raises:
        ConfigError: the image asks for another Python version, a file it names is missing or wrong, or its
            requirements contradict each other.
        ImageNotFoundError: the base is neither on the engine nor in its registry.
        ImageError: nothing can be built on the base, or a package or an index cannot be had.
    """
    check_python(image, python)
    root = root or Path.cwd()
    platform = image.platform or platform
    resolved = resolve_files(image, root, python=python, platform=platform)
    image, packages = resolved.image, resolved.packages
    made = base_build(image.base, root, platform) if isinstance(image.base, Dockerfile) else None
    named = str(image.base or os.environ.get("SKYWARD_BASE") or default_base(python))
    base = _built_base(made) if made else resolve_base(named, store)
    given = facts_of_base(named, base.facts, store, platform) if base.facts else None
    if given:
        check_base(repr(named), given, python)
    request = Request(
        image=image,
        python=python,
        platform=platform,
        provided=tuple(each.name for each in packages),
        rules=resolved.rules,
        projects=tuple((each.name, each.build) for each in packages if each.build),
    )
    return compile(
        image,
        python=python,
        platform=platform,
        base=base.reference,
        base_digest=base.digest,
        runner_digest=runner_digest(),
        lock=lock_requirements(request, upgrade=upgrade),
        packages=package_files(packages),
        code=code_files(image, root),
        base_build=made,
        given=given,
    )


def _built_base(made: BaseBuild) -> Base:
    return Base(reference=made.tag, digest=f"dockerfile:{made.digest}")


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
    pinned, digest = _pinned(reference, facts)
    return Base(reference=pinned, digest=digest, facts=facts)


def _pinned(reference: str, facts: ImageFacts) -> tuple[str, str]:
    """The base by digest if its own registry gave one, and the digest; an image made on this engine has its id only.

    An engine that keeps images in containerd gives every image a digest, which then is also its id. The builder would
    ask a registry for it, and where it has not come from one there is none, so such a base goes by its tag.
    """
    name = _repository(reference)
    for known in facts.repo_digests:
        repository, _, digest = known.partition("@")
        if _full_name(repository) == _full_name(name):
            return (reference if digest == facts.id else f"{name}@{digest}"), digest
    return reference, facts.id


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
