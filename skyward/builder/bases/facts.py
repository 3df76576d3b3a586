"""The facts of a base image (Python, user, C library), cached by image id, and the check that they suffice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from skyward.builder.bases.dockerfile import reads_context
from skyward.builder.cache import cache_path, read, write
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import ImageError
from skyward.image import BaseFacts, Plan

_FORMAT = 2  # raised when what is found out changes


def facts_of_base(reference: str, facts: ImageFacts, store: EngineImages, platform: str) -> BaseFacts:
    """The facts of an image on the engine, for images built on it; cached by its id.

    Raises:
        EngineError: the engine refuses.
    """
    note = _note(facts.id, platform)
    with suppress(ValueError, KeyError, TypeError, AttributeError):  # none yet, half written, or of another version
        return BaseFacts.of(json.loads(read(note) or ""))
    from skyward.builder.bases.inspection import examine  # where it is noted, none of this is loaded

    whole = facts if facts.config is not None else store.inspect(reference)
    config = (whole.config if whole else None) or {}
    with store.files(reference) as files:
        found = examine(config, files, platform)
    write(note, json.dumps(asdict(found)))
    return found


def noted_libc(dockerfile: str, find: Callable[[], str]) -> str:
    """The C library that was found for a Dockerfile's digest once, noted as `facts_of_base` does."""
    note = _note(dockerfile, "libc")
    known = read(note)
    if known is None:
        known = find()
        write(note, known)
    return known


def check_base(name: str, given: BaseFacts, python: str) -> None:
    """Check that an image can be built on a base.

    Raises:
        ImageError: it lacks what that takes.
    """
    reason = why_unfit(given, python)
    if reason:
        raise ImageError(f"The base image {name} cannot be built on. {reason}")


def why_unfit(given: BaseFacts, python: str) -> str:
    """The reason why nothing can be built on a base, and the remedy; "" if it can."""
    if "sh" in given.missing:
        return (
            "It has no shell, as is usual for images called distroless or made from scratch, and installing packages "
            f"takes one. Take a base with a shell, such as python:{python}-slim, and copy what you need into it."
        )
    if given.libc == "musl":
        return (
            f"Its C library is musl{_said(given)}, and the packages of nodes are those for glibc. Take a base made "
            f"from Debian, Ubuntu or another distribution with glibc, such as python:{python}-slim."
        )
    if given.missing:
        return (
            f"It lacks programs that the steps of a build need: {', '.join(given.missing)}{_said(given)}. Install them "
            "in a Dockerfile of your own and name that as base (they are in the packages coreutils, findutils, grep)."
        )
    reading = [line for line in given.onbuild if reads_context(line)]
    if reading:
        return (
            f"Its ONBUILD instructions copy files of the folder that a build is started in: {'; '.join(reading)}. Make "
            "an image of your own from it, with a Dockerfile in that folder, and name this Dockerfile as base."
        )
    if given.lacks(python) and not given.pythons and not given.apt:
        return (
            f"It has no Python, and neither pip nor apt to bring one{_said(given)}. Install Python {python} in a "
            f"Dockerfile of your own and name that as base, or take one that has it, such as python:{python}-slim."
        )
    return ""


def replaced_python(plan: Plan) -> str:
    """A note if the image gets another Python than the base has; "" if not."""
    if not (plan.given and plan.given.pythons and plan.given.lacks(plan.python)):
        return ""
    first = plan.given.pythons[0]
    return (
        f"the base has Python {first.version} ({first.path}), and nodes get Python {plan.python}, as this client has: "
        "packages that the base has for its own are not seen there"
    )


def _said(given: BaseFacts) -> str:
    return f" ({given.system})" if given.system else ""


def _note(image: str, platform: str) -> Path:
    name = hashlib.sha256(f"{_FORMAT} {image} {platform}".encode()).hexdigest()
    return cache_path("bases", f"{name[:32]}.json")
