"""Finding the base image, over an engine that is a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.plans import plan_for, resolve_base
from skyward.builder.store import EngineImages, ImageFacts
from skyward.errors import ImageNotFoundError
from skyward.model.image import Image
from tests.unit.builder.fakes import printed

DIGEST = "sha256:" + "d" * 64


class Engine(EngineImages):
    """Images by name, those that can be pulled, and what was asked."""

    def __init__(self, here: dict[str, ImageFacts], registry: dict[str, ImageFacts] | None = None) -> None:
        self.here, self.registry = here, registry or {}
        self.pulled: list[str] = []

    def inspect(self, ref: str) -> ImageFacts | None:
        return self.here.get(ref)

    def pull(self, ref: str) -> None:
        self.pulled.append(ref)
        if ref not in self.registry:
            raise ImageNotFoundError(f"The registry has no {ref}.")
        self.here[ref] = self.registry[ref]

    def run(self, ref: str, script: str, arguments: Sequence[str]) -> str:  # noqa: ARG002
        return printed()


@pytest.mark.parametrize(
    ("reference", "known", "image_id", "used"),
    [
        ("python:3.11-slim", "python", "1", "python@"),
        ("python:3.11-slim", "docker.io/library/python", "1", "python@"),
        ("me/python:1", "docker.io/me/python", "1", "me/python@"),
        ("host:5000/a/b:1", "host:5000/a/b", "1", "host:5000/a/b@"),
        ("host:5000/a", "host:5000/a", "1", "host:5000/a@"),
        ("skyward/base:1", "127.0.0.1:1/skyward/base", "1", "skyward/base:1"),
        ("skyward/base:1", "skyward/base", DIGEST, "skyward/base:1"),
    ],
)
def test_which_digest_is_a_base_s_own(reference: str, known: str, image_id: str, used: str) -> None:
    """FROM names the digest that the base's own registry gave; an image made here goes by its tag, and by its id.

    In containerd every image has a digest, which no registry need know.
    """
    facts = ImageFacts(id=image_id, repo_digests=("other/x@sha256:2", f"{known}@{DIGEST}"))
    base = resolve_base(reference, Engine({reference: facts}))
    if used.endswith("@"):
        assert (base.reference, base.digest) == (f"{used}{DIGEST}", DIGEST)
    else:
        assert (base.reference, base.digest) == (used, image_id)


def test_a_base_that_is_nowhere() -> None:
    """The error names the image, gives the registry's words and says what to do."""
    with pytest.raises(ImageNotFoundError, match=r"'x:1'.*The registry has no x:1\..*SKYWARD_BASE"):
        resolve_base("x:1", Engine({}))


def test_which_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's own base, else SKYWARD_BASE, else the official image."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = Engine({name: ImageFacts(id=name, config={}) for name in ("own:1", "site:1", "python:3.11-slim")})
    asked: dict[str, Any] = {"python": "3.11", "platform": "linux/amd64"}
    monkeypatch.setenv("SKYWARD_BASE", "site:1")
    assert plan_for(Image(base="own:1"), engine, **asked).base == "own:1"
    assert plan_for(Image(), engine, **asked).base == "site:1"
    monkeypatch.delenv("SKYWARD_BASE")
    assert plan_for(Image(), engine, **asked).base == "python:3.11-slim"
