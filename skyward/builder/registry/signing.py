"""Image signatures in cosign's form: `cosign verify --key team.pub` accepts ours, and we accept cosign's.

What is signed is a small document that names the image's digest, by ECDSA on the curve P-256 with SHA-256. It lies in
the image's repository under the tag `sha256-<digest>.sig`:
https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.registry.client import MANIFEST_TYPES, RegistryClient, encoded, sha256
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


def private_key(path: str | Path) -> EllipticCurvePrivateKey:
    """A key to sign with, from a PEM file; COSIGN_PASSWORD has its password, if it has one.

    Raises:
        ConfigError: the file cannot be read, or holds another kind of key.
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
    """A key to verify with, from a PEM file.

    Raises:
        ConfigError: the file cannot be read, or holds another kind of key.
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
    """Sign an image that a registry has; signatures of others stay.

    Args:
        reference: its repository.
        digest: of its manifest.
        key: to sign with.

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
        known = [each for each in _layers(client, digest) if not _is_by(client, each, digest, key.public_key())]
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
        for blob in (payload, config):
            if not client.has_blob(sha256(blob)):
                client.put_blob(blob)
        described = {"mediaType": _CONFIG, "size": len(config), "digest": sha256(config)}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPES[0], "config": described, "layers": layers}
        client.put_manifest(_tag(digest), MANIFEST_TYPES[0], encoded(manifest))


def verify(reference: Reference, digest: str, path: str | Path) -> None:
    """Check that an image is signed with the private half of a key.

    Args:
        reference: its repository.
        digest: of its manifest.
        path: of the public key.

    Raises:
        ConfigError: the key cannot be used.
        RegistryError: the image is not signed with that key, or the registry cannot say.
    """
    key = public_key(path)
    with RegistryClient(reference) as client:
        layers = _layers(client, digest)
        if any(_is_by(client, layer, digest, key) for layer in layers):
            return
    found = f"it has {len(layers)} signature{'s' * (len(layers) != 1)} of others" if layers else "it has no signature"
    raise RegistryError(
        f"The image {reference.name}@{digest} is not signed with the key of {path}: {found}. It was not used.",
        "Sign it with `skyward build --push ... --sign KEY`, if it is what you expect.",
    )


def _layers(client: RegistryClient, digest: str) -> list[dict[str, Any]]:
    found = client.manifest(_tag(digest))
    layers = json.loads(found.content).get("layers") or () if found else ()
    return [layer for layer in layers if layer.get("mediaType") == _PAYLOAD]


def _is_by(client: RegistryClient, layer: dict[str, Any], digest: str, key: EllipticCurvePublicKey) -> bool:
    """Whether a signature is one of the image, with this key."""
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
        return False  # by somebody else, of something else, or no signature at all


def _tag(digest: str) -> str:
    return f"{digest.replace(':', '-')}.sig"


def _read(path: str | Path) -> bytes:
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise ConfigError("Signatures take the package cryptography. Install it with `pip install 'skyward[sign]'`.")
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
