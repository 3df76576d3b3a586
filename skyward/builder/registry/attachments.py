"""Attachments of an image in a registry: signatures, and documents such as its bill of materials.

Signatures have cosign's format: `cosign verify --key team.pub` accepts those made here, and cosign's are accepted here.
The signed payload is a small document with the image's digest; the algorithm is ECDSA on the curve P-256 with SHA-256.
It is stored in the image's repository under the tag `sha256-<digest>.sig`:
https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md

Documents are artifacts whose `subject` is the image, as in OCI 1.1. Registries list them
(https://github.com/opencontainers/distribution-spec/blob/main/spec.md, "Listing Referrers"); for those that do not,
such as distribution 2.8, clients keep the list in an index under the tag `sha256-<digest>`.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.registry.client import INDEX_TYPES, MANIFEST_TYPES, RegistryClient, encoded, sha256
from skyward.builder.registry.reference import Reference
from skyward.errors import ConfigError, RegistryError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

_PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_KIND = "cosign container image signature"
_MAKE = (
    "`openssl ecparam -name prime256v1 -genkey -noout -out team.key` makes a private key, "
    "`openssl ec -in team.key -pubout -out team.pub` its public one."
)
_EMPTY, _EMPTY_TYPE = b"{}", "application/vnd.oci.empty.v1+json"


def private_key(path: str | Path) -> EllipticCurvePrivateKey:
    """Read a signing key from a PEM file; COSIGN_PASSWORD holds its password, if it has one.

    Raises:
        ConfigError: the file cannot be read, or contains another kind of key.
    """
    text = _read(path)
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if b"ENCRYPTED SIGSTORE PRIVATE KEY" in text or b"ENCRYPTED COSIGN PRIVATE KEY" in text:
        raise ConfigError(f"The key {path} is encrypted in cosign's own way. Use one in PEM form: {_MAKE}")
    password = os.environ.get("COSIGN_PASSWORD", "").encode() if b"ENCRYPTED" in text else None
    try:
        key: Any = load_pem_private_key(text, password)
    except (ValueError, TypeError):
        raise ConfigError(
            f"The key {path} cannot be used: it is not a private key in PEM form, or COSIGN_PASSWORD is wrong. {_MAKE}"
        ) from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise ConfigError(f"The key {path} is not one for ECDSA on the curve P-256. {_MAKE}")
    return key


def public_key(path: str | Path) -> EllipticCurvePublicKey:
    """Read a verification key from a PEM file.

    Raises:
        ConfigError: the file cannot be read, or contains another kind of key.
    """
    text = _read(path)
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key: Any = load_pem_public_key(text)
    except ValueError:
        raise ConfigError(f"{path} is not a public key in PEM form. {_MAKE}") from None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ConfigError(f"The key {path} is not one for ECDSA on the curve P-256. {_MAKE}")
    return key


def sign(reference: Reference, digest: str, key: EllipticCurvePrivateKey) -> None:
    """Sign an image in a registry; other signers' signatures are kept.

    Args:
        reference: its repository.
        digest: digest of its manifest.
        key: the signing key.

    Raises:
        RegistryError: the registry cannot be reached or refuses.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    identity = {"docker-reference": reference.name}
    critical = {"identity": identity, "image": {"docker-manifest-digest": digest}, "type": _KIND}
    payload = encoded({"critical": critical, "optional": None})
    signature = base64.b64encode(key.sign(payload, ECDSA(SHA256()))).decode()
    layer = {"mediaType": _PAYLOAD, "size": len(payload), "digest": sha256(payload)}
    with RegistryClient(reference, "pull,push") as client:
        known = [each for each in _signatures(client, digest) if not _is_by(client, each, digest, key.public_key())]
        layers = [*known, {**layer, "annotations": {_SIGNATURE: signature}}]
        config = encoded(
            {
                "architecture": "",
                "os": "",
                "config": {},
                "created": "0001-01-01T00:00:00Z",
                "history": [{"created": "0001-01-01T00:00:00Z"} for _ in layers],
                "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
            }
        )
        client.put_blobs(payload, config)
        described = {"mediaType": _CONFIG, "size": len(config), "digest": sha256(config)}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "config": described, "layers": layers}
        client.put_manifest(f"{_tag(digest)}.sig", MANIFEST_TYPES[0], encoded(manifest))


def verify(reference: Reference, digest: str, path: str | Path) -> None:
    """Check that an image is signed with the private half of a key.

    Args:
        reference: its repository.
        digest: digest of its manifest.
        path: path of the public key.

    Raises:
        ConfigError: the key cannot be used.
        RegistryError: the image is not signed with that key, or the registry does not answer the question.
    """
    key = public_key(path)
    with RegistryClient(reference) as client:
        layers = _signatures(client, digest)
        if any(_is_by(client, layer, digest, key) for layer in layers):
            return
    found = f"it has {len(layers)} signature{'s' * (len(layers) != 1)} of others" if layers else "it has no signature"
    raise RegistryError(
        f"The image {reference.name}@{digest} is not signed with the key of {path}: {found}. It was not used.",
        "Sign it with `skyward build --push ... --sign KEY`, if it is what you expect.",
    )


def _signatures(client: RegistryClient, digest: str) -> list[dict[str, Any]]:
    layers = _kept(client, f"{_tag(digest)}.sig", "layers")
    return [layer for layer in layers if layer.get("mediaType") == _PAYLOAD]


def _is_by(client: RegistryClient, layer: dict[str, Any], digest: str, key: EllipticCurvePublicKey) -> bool:
    """Return whether a layer is a signature of the image with this key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    payload = client.blob(str(layer["digest"])).content
    try:
        signature = base64.b64decode((layer.get("annotations") or {})[_SIGNATURE], validate=True)
        key.verify(signature, payload, ECDSA(SHA256()))
        critical = json.loads(payload)["critical"]
        return bool(critical["type"] == _KIND and critical["image"]["docker-manifest-digest"] == digest)
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return False  # signed by somebody else, for another image, or not a signature


def _read(path: str | Path) -> bytes:
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise ConfigError("Signatures take the package cryptography. Install it with `pip install 'skyward[sign]'`.")
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None


def attach(reference: Reference, digest: str, kind: str, name: str, content: bytes) -> None:
    """Attach a document to an image, unless it is already attached.

    Args:
        reference: its repository.
        digest: digest of its manifest.
        kind: media type of the document.
        name: name of the document, for users.
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
        client.put_blobs(_EMPTY, content)
        is_listed = client.put_manifest(sha256(manifest), MANIFEST_TYPES[0], manifest)
        if not is_listed:
            entry = {"mediaType": MANIFEST_TYPES[0], "digest": sha256(manifest), "size": len(manifest)}
            _list_by_tag(client, digest, {**entry, "artifactType": kind})


def attached(reference: Reference, digest: str, kind: str) -> bytes | None:
    """Return the document of a kind that is attached to an image; None if there is none.

    Raises:
        RegistryError: the registry cannot be reached or refuses, or its document is of another kind.
    """
    with RegistryClient(reference) as client:
        listed = client.referrers(digest)
        listed = _kept(client, _tag(digest), "manifests") if listed is None else listed
        fitting = [str(entry["digest"]) for entry in listed if entry.get("artifactType") == kind]
        found = client.manifest(fitting[-1]) if fitting else None
        if found is None:
            return None
        layers = json.loads(found.content).get("layers") or ()
        wanted = next((str(layer["digest"]) for layer in layers if layer.get("mediaType") == kind), None)
        return client.blob(wanted).content if wanted else None


def _list_by_tag(client: RegistryClient, digest: str, entry: dict[str, Any]) -> None:
    known = _kept(client, _tag(digest), "manifests")
    if any(each.get("digest") == entry["digest"] for each in known):
        return
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": [*known, entry]}
    client.put_manifest(_tag(digest), INDEX_TYPES[0], encoded(index))


def _kept(client: RegistryClient, tag: str, what: str) -> list[dict[str, Any]]:
    """Return a list from the manifest under a tag; empty if there is none."""
    found = client.manifest(tag)
    return list(json.loads(found.content).get(what) or ()) if found else []


def _tag(digest: str) -> str:
    return digest.replace(":", "-")
