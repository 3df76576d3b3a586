"""What the compiler makes builds on the engine under test and on a newer one with buildx; there twice the same."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.commands import Images
from tests.e2e.engines import OwnEngine

REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
# something of each kind that becomes an instruction, packages that are large and small among them
ALL_KINDS = """
apt = ["hello"]
pip = ["markupsafe", "six"]
includes = ["mine.py"]
bake = true
secrets = ["TOKEN"]
run = ["test $(wc -c < /run/secrets/TOKEN) = 5; hello > /said", "printf '%s' \\"$FLAG\\" > /flag"]
[env]
ODD = 'a "b" $HOME `id` \\ ä'
[build_env]
FLAG = "it's"
"""
LOOK = (
    "import os, markupsafe, six, mine; print(mine.x, six.__name__, markupsafe.__name__, repr(os.environ['ODD']), "
    "open('/said').read().strip(), open('/flag').read(), os.path.exists('/run/secrets'))"
)
SEEN = "7 six markupsafe 'a \"b\" $HOME `id` \\\\ ä' Hello, world! it's False\n"


@pytest.fixture
def images(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Images]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKEN", "12345")
    images = Images(engine, tmp_path)
    yield images
    images.remove()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("x = 7\n")
    path = tmp_path / "all-kinds.toml"
    path.write_text(ALL_KINDS)
    return path


def _build(images: Images, file: Path, env: dict[str, str]) -> dict[str, Any]:
    done = images("build", file, "--json", **env)
    assert done.status == 0, done.err + done.out
    return dict(done.of("result")[0])


def test_every_kind_of_instruction(images: Images, file: Path, engine: Any) -> None:
    """The builder takes it, and what runs in the image finds what was asked for."""
    _check_every_kind(images, file, engine, {}, _build(images, file, {})["tag"])


def _check_every_kind(images: Images, file: Path, api: Any, env: dict[str, str], tag: str) -> None:
    said = api.containers.run(tag, ["python", "-c", LOOK], remove=True, network_mode="host")
    assert said.decode() == SEEN
    again = images("build", file, **env)
    assert f"{tag}  {file}: exists" in again.out
    assert again.err == ""


def test_two_clean_builds_on_a_newer_engine_are_one_image(
    images: Images, file: Path, newer: OwnEngine, tmp_path: Path
) -> None:
    """Nothing of the first is used for the second, and yet it is the same, down to the image's digest.

    It takes every kind of instruction as well, and what runs in the image finds what was asked for.
    """
    cli = tmp_path / "docker"
    cli.write_text(
        f"#!/bin/sh\nreal={newer.env['SKYWARD_DOCKER_CLI']}\n"
        '[ "$1" = build ] && shift && exec "$real" build --no-cache "$@"\nexec "$real" "$@"\n'
    )
    cli.chmod(0o755)
    ids, layers = [], []
    for _ in range(2):
        with newer.client() as client:
            for tag in [tag for image in client.images.list() for tag in image.tags if ":sky-" in tag]:
                client.images.remove(tag, force=True)
        result = _build(images, file, {**newer.env, "SKYWARD_DOCKER_CLI": str(cli)})
        assert "cached" not in {layer["state"] for layer in result["layers"]}
        with newer.client() as client:
            layers.append(client.images.get(result["tag"]).attrs["RootFS"]["Layers"])
        ids.append(result["id"])

    assert layers[0] == layers[1]
    assert ids[0] == ids[1]
    with newer.client() as client:
        _check_every_kind(images, file, client, dict(newer.env), result["tag"])


def test_layers_compressed_with_zstd(images: Images, newer: OwnEngine) -> None:
    """Pushed so on request; the engine runs the image by the registry's digest, pulled anew."""
    where = f"{REGISTRY}/zstd-{secrets.token_hex(3)}/x"
    file = images.file("echo packed > /word")
    done = images("build", file, "--push", where, "--zstd", "--json", **newer.env)
    assert done.status == 0, done.err + done.out
    (result,) = done.of("result")

    name, _, digest = result["reference"].removeprefix(f"{REGISTRY}/").partition("@")
    kinds = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    answer = requests.get(f"http://{REGISTRY}/v2/{name}/manifests/{digest}", headers=kinds, timeout=60)
    assert {layer["mediaType"].rpartition("+")[2] for layer in answer.json()["layers"]} == {"zstd"}
    with newer.client() as client:
        client.images.remove(result["tag"], force=True)
        client.images.pull(result["reference"])
        said = client.containers.run(result["reference"], ["cat", "/word"], remove=True, network_mode="host")
        client.images.remove(result["reference"], force=True)
    assert said == b"packed\n"
    assert images("build", file, "--push", where, "--check", **newer.env).status == 0
