"""Documents attached to an image in a registry, as in OCI 1.1: artifacts whose `subject` is the image.

Registries list them (https://github.com/opencontainers/distribution-spec/blob/main/spec.md, "Listing Referrers"); for
those that do not, such as distribution 2.8, clients keep the list in an index under the tag `sha256-<digest>`.
"""

from __future__ import annotations

import json
from typing import Any

from skyward.builder.registry.client import INDEX_TYPES, MANIFEST_TYPES, RegistryClient, encoded, sha256
from skyward.builder.registry.reference import Reference
from skyward.errors import RegistryError

_EMPTY, _EMPTY_TYPE = b"{}", "application/vnd.oci.empty.v1+json"


def attach(reference: Reference, digest: str, kind: str, name: str, content: bytes) -> None:
    """Attach a document to an image, unless it is attached already.

    Args:
        reference: its repository.
        digest: of its manifest.
        kind: media type of the document.
        name: of the document, for people.
        content: the document.

    Raises:
        RegistryError: the registry cannot be reached, refuses, or does not have the image.
    """
    with RegistryClient(reference, "pull,push") as client:
        subject = client.manifest(digest)
        if subject is None:
            raise RegistryError(f"The registry does not have {reference.name}@{digest}.", "Push the image first.")
        described = {"mediaType": subject.media_type, "digest": digest, "size": len(subject.content)}
        layer = {"mediaType": kind, "digest": sha256(content), "size": len(content)}
        manifest = encoded(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPES[0],
                "artifactType": kind,
                "config": {"mediaType": _EMPTY_TYPE, "digest": sha256(_EMPTY), "size": len(_EMPTY)},
                "layers": [{**layer, "annotations": {"org.opencontainers.image.title": name}}],
                "subject": described,
            }
        )
        for blob in (_EMPTY, content):
            if not client.has_blob(sha256(blob)):
                client.put_blob(blob)
        is_listed = client.put_manifest(sha256(manifest), MANIFEST_TYPES[0], manifest)
        if not is_listed:
            entry = {"mediaType": MANIFEST_TYPES[0], "digest": sha256(manifest), "size": len(manifest)}
            _list_by_tag(client, digest, {**entry, "artifactType": kind})


def attached(reference: Reference, digest: str, kind: str) -> bytes | None:
    """The document of a kind that is attached to an image; None for none.

    Raises:
        RegistryError: the registry cannot be reached or refuses, or what it has is no such document.
    """
    with RegistryClient(reference) as client:
        listed = client.referrers(digest)
        listed = _tagged(client, digest) if listed is None else listed
        fitting = [str(entry["digest"]) for entry in listed if entry.get("artifactType") == kind]
        found = client.manifest(fitting[-1]) if fitting else None
        if found is None:
            return None
        layers = json.loads(found.content).get("layers") or ()
        wanted = next((str(layer["digest"]) for layer in layers if layer.get("mediaType") == kind), None)
        return client.blob(wanted).content if wanted else None


def _list_by_tag(client: RegistryClient, digest: str, entry: dict[str, Any]) -> None:
    known = _tagged(client, digest)
    if any(each.get("digest") == entry["digest"] for each in known):
        return
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [*known, entry]}
    client.put_manifest(_tag(digest), INDEX_TYPES[0], encoded(index))


def _tagged(client: RegistryClient, digest: str) -> list[dict[str, Any]]:
    found = client.manifest(_tag(digest))
    return list(json.loads(found.content).get("manifests") or ()) if found else []


def _tag(digest: str) -> str:
    return digest.replace(":", "-")
