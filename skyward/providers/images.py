"""The images of a Docker engine in the form the build room asks for."""

from __future__ import annotations

from skyward.build.store import ImageFacts
from skyward.engine import Engine


class EngineImages:
    """An `ImageStore` over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def inspect(self, ref: str) -> ImageFacts | None:
        """Facts on the image of that name or id; None if the engine does not have it."""
        found = self._engine.image(ref)
        if found is None:
            return None
        config = found.get("Config") or {}
        variant = f"/{found['Variant']}" if found.get("Variant") else ""
        return ImageFacts(
            id=found["Id"],
            repo_digests=tuple(found.get("RepoDigests") or ()),
            env=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            labels=config.get("Labels") or {},
            size=found.get("Size", 0),
            platform=f"{found['Os']}/{found['Architecture']}{variant}",
        )

    def pull(self, ref: str) -> None:
        """Fetch an image from its registry; raises ImageNotFoundError with the registry's own words."""
        self._engine.pull(ref)
