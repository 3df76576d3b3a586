"""The manifest of a tag's image for one platform, picked from an index where there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skyward.builder.contents import content_digest
from skyward.builder.registry.client import INDEX_TYPES, Blob, RegistryClient
from skyward.errors import RegistryError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """One image in a registry.

    Attributes:
        tagged: digest of what the tag stands for: the manifest, or an index that has it.
        digest: of the manifest: what nodes run.
        media_type: Docker's or OCI's.
        document: the manifest.
        config: the image's configuration: environment, labels, history, layers by content.
    """

    tagged: str
    digest: str
    media_type: str
    document: Mapping[str, Any] = field(repr=False, hash=False)
    config: Mapping[str, Any] = field(repr=False, hash=False)

    @property
    def layers(self) -> tuple[tuple[str, str, int], ...]:
        """Its layers from the base up: digest of the content, digest of the blob, bytes of the blob."""
        contents = self.config["rootfs"]["diff_ids"]
        blobs = self.document["layers"]
        return tuple((content, b["digest"], b["size"]) for content, b in zip(contents, blobs, strict=True))

    @property
    def content(self) -> str:
        """Digest of what runs, see `skyward.builder.contents`."""
        config = self.config
        layers = config["rootfs"]["diff_ids"]
        return content_digest(layers, config.get("config") or {}, config["os"], config["architecture"])


def find_image(client: RegistryClient, wanted: str, platform: str) -> ImageManifest | None:
    """The image with that tag or digest that runs on a platform; None if there is none.

    Raises:
        RegistryError: the registry cannot say.
    """
    found = client.manifest(wanted)
    if found is None:
        return None
    tagged, document = found.digest, _document(found)
    if found.media_type in INDEX_TYPES:
        entries = document.get("manifests") or ()
        fitting = [entry for entry in entries if _fits(entry.get("platform") or {}, platform)]
        if not fitting:
            return None
        found = client.manifest(str(fitting[0]["digest"]))
        if found is None:
            return None
        document = _document(found)
    try:
        config = _document(client.blob(str(document["config"]["digest"])))
    except (KeyError, TypeError) as error:
        raise RegistryError(f"What the registry has as {wanted} is no image: it has no configuration.") from error
    if not _fits(config, platform):
        return None
    return ImageManifest(
        tagged=tagged, digest=found.digest, media_type=found.media_type, document=document, config=config
    )


def _document(blob: Blob) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(blob.content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RegistryError(f"The registry holds something else than JSON as {blob.digest}.", "Push the image anew.")
    return found


def _fits(described: Mapping[str, Any], platform: str) -> bool:
    """Whether the platform in an index or a configuration is the wanted one."""
    system, _, rest = platform.partition("/")
    machine, _, variant = rest.partition("/")
    if (described.get("os"), described.get("architecture")) != (system, machine):
        return False
    return variant in ("", "v8" if machine == "arm64" else "", described.get("variant") or "")
