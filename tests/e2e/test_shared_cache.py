"""Layers that one builder made and pushed are taken from the registry by another that has never built anything."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.commands import Images
from tests.e2e.engines import OwnEngine, Release, present_release

REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
RANDOM = "head -c 300000 /dev/urandom > /random"


@pytest.fixture
def images(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Images]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = Images(engine, tmp_path)
    yield images
    images.remove()


def _files(images: Images) -> tuple[Path, Path]:
    """An image with a step whose result nobody can make again, and the same with one command more."""
    first = images.file(RANDOM, more='pip = ["six"]\n')
    second = images.folder / "second.toml"
    second.write_text(first.read_text().replace(f'"{RANDOM}"]', f'"{RANDOM}", "echo more > /more"]'))
    assert second.read_text() != first.read_text()
    return first, second


def _states(done: dict[str, Any]) -> dict[str, str]:
    """What became of each layer, by the beginning of its name."""
    return {layer["name"].split(" ==")[0]: layer["state"] for layer in done["layers"] if layer["state"]}


def _build(images: Images, file: Path, where: str, env: dict[str, str]) -> dict[str, Any]:
    done = images("build", file, "--push", where, "--json", **env)
    assert done.status == 0, done.err + done.out
    (result,) = done.of("result")
    images.tags.append(f"{where}:{result['tag'].rpartition(':')[2]}")
    return dict(result)


def _document(reference: str) -> dict[str, Any]:
    """A manifest of the suite's registry, by `repository:tag` or `repository@digest`."""
    name, _, wanted = reference.removeprefix(f"{REGISTRY}/").replace("@", ":", 1).partition(":")
    kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
    answer = requests.get(f"http://{REGISTRY}/v2/{name}/manifests/{wanted}", headers={"Accept": kinds}, timeout=60)
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def _layers(reference: str) -> list[str]:
    return [layer["digest"] for layer in _document(reference)["layers"]]


def _contents(reference: str) -> list[str]:
    """The digests of an image's layers as they are unpacked."""
    name, digest = reference.removeprefix(f"{REGISTRY}/").partition("@")[0], _document(reference)["config"]["digest"]
    answer = requests.get(f"http://{REGISTRY}/v2/{name}/blobs/{digest}", timeout=60)
    answer.raise_for_status()
    layers: list[str] = answer.json()["rootfs"]["diff_ids"]
    return layers


def test_an_old_builder_takes_the_layers_of_the_last_image(images: Images) -> None:
    """The image itself says what made its layers: a fresh engine runs the new command only, and pushes that alone."""
    first, second = _files(images)
    where = f"{REGISTRY}/shared-{secrets.token_hex(3)}/x"

    made = _build(images, first, where, {})
    with present_release().engine() as other:
        used = _build(images, second, where, dict(other.env))

    assert _states(made)[f"run {RANDOM}"] == "done"
    assert _states(used)[f"run {RANDOM}"] == "cached"
    assert _states(used)["run echo more > /more"] == "done"
    assert [state for name, state in _states(used).items() if name.startswith("pip ")] == ["cached"]
    before, after = _layers(made["reference"]), _layers(used["reference"])
    # only a command's own layer and what stands above it is new
    assert len(set(after) - set(before)) <= 2
    assert _layers(f"{where}:cache-amd64") == after


def test_a_new_builder_shares_every_step(images: Images, newer: OwnEngine, newer_docker: Release) -> None:
    """Buildx with images in containerd puts the layers of all stages there; a second engine has them."""
    first, second = _files(images)
    where = f"{REGISTRY}/shared-{secrets.token_hex(3)}/x"

    made = _build(images, first, where, dict(newer.env))
    kept = {*_layers(made["reference"]), *_layers(f"{where}:cache-amd64")}
    with newer_docker.engine() as other:
        used = _build(images, second, where, dict(other.env))

    assert "done" in _states(made).values()
    # what stands above the new command is made again
    ran = {name for name, state in _states(used).items() if state == "done"}
    assert ran == {"run echo more > /more", "the runner"}
    # nothing else is new, neither as files nor, in whichever compression it had been left there, as what is sent
    assert len(set(_contents(used["reference"])) - set(_contents(made["reference"]))) <= len(ran)
    assert len(set(_layers(used["reference"])) - kept) <= len(ran)
    assert len(set(_contents(made["reference"])) - set(_contents(used["reference"]))) <= 1
    assert _document(f"{where}:cache-amd64")["config"]["mediaType"] == "application/vnd.buildkit.cacheconfig.v0"
