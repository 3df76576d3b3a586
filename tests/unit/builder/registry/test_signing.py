"""Signatures in cosign's form, and documents attached to images."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from skyward.builder.registry.attachments import attach, attached, private_key, sign, verify
from skyward.builder.registry.reference import Reference, parse_reference
from skyward.errors import ConfigError, RegistryError
from tests.unit.builder.registry.server import RegistryServer

KIND = "application/spdx+json"


def _keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A pair, made as the advice has it."""
    key, public = folder / f"{name}.key", folder / f"{name}.pub"
    for words in (
        f"ecparam -name prime256v1 -genkey -noout -out {key}",
        f"ec -in {key} -pubout -out {public}",
    ):
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    return key, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return _keys(tmp_path, "team")


@pytest.fixture
def image(server: RegistryServer) -> tuple[Reference, str]:
    server.uploads_at = f"http://{server.host}/v2/x/blobs/uploads/1"
    return parse_reference(f"{server.host}/x:t"), server.add_image("t")


def test_a_signature(server: RegistryServer, image: tuple[Reference, str], keys: tuple[Path, Path]) -> None:
    """It holds for that digest and key; its form is cosign's; openssl agrees with it."""
    key, public = keys
    sign(*image, private_key(key))

    verify(*image, public)
    reference, digest = image
    layer = json.loads(server.manifests[f"{digest.replace(':', '-')}.sig"][1])["layers"][0]
    payload = server.blobs[layer["digest"]]
    assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": reference.name},
            "image": {"docker-manifest-digest": digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    folder = key.parent
    (folder / "payload").write_bytes(payload)
    (folder / "text").write_text(layer["annotations"]["dev.cosignproject.cosign/signature"])
    subprocess.run(f"base64 -d {folder}/text > {folder}/signature", shell=True, check=True)
    words = f"dgst -sha256 -verify {public} -signature {folder}/signature {folder}/payload"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)


def test_no_signature_and_those_of_others(
    server: RegistryServer, image: tuple[Reference, str], keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """The error names image, digest and key; several may sign, each once."""
    reference, digest = image
    other, theirs = _keys(tmp_path, "other")
    with pytest.raises(
        RegistryError, match=rf"{reference.name}@{digest} is not signed .*team\.pub: it has no signature"
    ):
        verify(*image, keys[1])
    sign(*image, private_key(other))
    with pytest.raises(RegistryError, match=r"1 signature of others. It was not used"):
        verify(*image, keys[1])
    for _ in range(2):
        sign(*image, private_key(keys[0]))
    verify(*image, keys[1])
    verify(*image, theirs)
    assert len(json.loads(server.manifests[f"{digest.replace(':', '-')}.sig"][1])["layers"]) == 2


def test_a_signature_of_another_image(
    server: RegistryServer, image: tuple[Reference, str], keys: tuple[Path, Path]
) -> None:
    """It is none, though it is right in itself; nor is one whose document was changed."""
    reference, digest = image
    sign(*image, private_key(keys[0]))
    other = server.add_image("other", variant="v9")
    signatures = server.manifests[f"{digest.replace(':', '-')}.sig"]
    server.manifests[f"{other.replace(':', '-')}.sig"] = signatures
    with pytest.raises(RegistryError, match=other):
        verify(reference, other, keys[1])
    payload = json.loads(signatures[1])["layers"][0]["digest"]
    server.blobs[payload] = server.blobs[payload].replace(b"cosign", b"COSIGN")
    with pytest.raises(RegistryError, match=payload):
        verify(reference, digest, keys[1])


def test_keys_that_cannot_be_used(tmp_path: Path, keys: tuple[Path, Path], image: tuple[Reference, str]) -> None:
    """The error names the file and says how to make one."""
    (tmp_path / "cosign.key").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nx\n")
    subprocess.run(f"openssl genrsa -out {tmp_path}/rsa.key 2048", shell=True, check=True, capture_output=True)
    for name, word in (("cosign.key", "cosign's own way"), ("rsa.key", "P-256"), ("none.key", "cannot be read")):
        with pytest.raises(ConfigError, match=word) as caught:
            private_key(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(ConfigError, match=r"team\.key is not a public key .*openssl"):
        verify(*image, keys[0])


@pytest.mark.parametrize("lists_referrers", [False, True])
def test_attached_documents(server: RegistryServer, image: tuple[Reference, str], lists_referrers: bool) -> None:
    """Found again by their kind, whether the registry lists them or clients do; the same is attached once."""
    server.lists_referrers = lists_referrers
    reference, digest = image
    assert attached(reference, digest, KIND) is None
    for _ in range(2):
        attach(reference, digest, KIND, "x.spdx.json", b"{}\n")
    attach(reference, digest, "text/plain", "x.txt", b"hello")

    assert attached(reference, digest, KIND) == b"{}\n"
    assert attached(reference, digest, "text/plain") == b"hello"
    tag = digest.replace(":", "-")
    assert (tag in server.manifests) != lists_referrers
    if not lists_referrers:
        assert len(json.loads(server.manifests[tag][1])["manifests"]) == 2


def test_nothing_is_attached_to_what_is_not_there(server: RegistryServer) -> None:
    """The error names the image."""
    reference, digest = parse_reference(f"{server.host}/x:t"), "sha256:" + "0" * 64
    with pytest.raises(RegistryError, match=f"does not have {reference.name}@{digest}"):
        attach(reference, digest, KIND, "x", b"{}")
