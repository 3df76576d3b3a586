"""Images pushed, found and run by digest, on a real registry and engine; logins against a real registry."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import secrets
import shutil
import socket
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from skyward.builder.plans import plan_for
from skyward.builder.registry.pushing import digest_of, push
from skyward.builder.store import EngineImages
from skyward.engine import Images, find_engine
from skyward.errors import ImageNotFoundError, RegistryError
from skyward.model.image import Dockerfile, Image
from skyward.model.image_fields import local_minor

AMD64 = "linux/amd64"
REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
USER, PASSWORD = "ann", "canary-9d41c7"
HTPASSWD = r"ann:$2b$05$Ab3Ab3Ab3Ab3Ab3Ab3Ab3eGUM8pmcopyjPE7Q4DejUpdb/VwbJoNy"  # bcrypt of that password
CONFIG = """version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: /tmp/images}}}}
http: {{addr: {address}}}
auth: {{htpasswd: {{realm: test, path: /locked/htpasswd}}}}
"""
Push = Callable[..., str]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memo and a Docker configuration of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def images() -> Iterator[EngineImages]:
    connection = Images(find_engine())
    yield EngineImages(connection)
    connection.close()


@pytest.fixture(scope="module")
def base(engine: Any) -> Iterator[str]:
    """A small image that no registry has seen."""
    with _new_image(engine) as tag:
        yield tag


@contextmanager
def _new_image(engine: Any) -> Iterator[str]:
    """The default base and a layer with a random file in it, for the time of a `with` block."""
    tag = f"skyward-test:{secrets.token_hex(6)}"
    container = engine.containers.create(os.environ["SKYWARD_BASE"], ["true"])
    try:
        container.put_archive("/opt", _tar("random", secrets.token_bytes(300_000)))
        container.commit(*tag.split(":"))
    finally:
        container.remove()
    try:
        yield tag
    finally:
        engine.images.remove(tag, force=True)


def _tar(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def pushed(images: EngineImages, engine: Any, base: str) -> Iterator[Push]:
    """Push the image of the module; names that this leaves on the engine go with the test."""
    made: list[str] = []

    def do(target: str, image: str = base) -> str:
        made.append(target)
        return push(image, target, engine=images.images, report=print)

    yield do
    for target in made:
        with suppress(Exception):  # a push that failed early left no name
            engine.images.remove(target)


@pytest.fixture
def run(engine: Any) -> Iterator[Callable[[str, str], str]]:
    """Pull an image by its digest and say what a piece of Python prints in it; the image is removed again."""
    pulled: set[str] = set()

    def do(reference: str, code: str) -> str:
        engine.images.pull(reference)
        pulled.add(reference)
        output: bytes = engine.containers.run(reference, ["python3", "-c", code], remove=True, network_mode="host")
        return output.decode()

    yield do
    for reference in pulled:
        engine.images.remove(reference, force=True)


def _new_name() -> str:
    return f"test/{secrets.token_hex(6)}"


def test_push_and_run_by_digest(
    pushed: Push, run: Callable[[str, str], str], engine: Any, images: EngineImages
) -> None:
    """An absent image exists after a push, with the digest that the engine can pull, until it is deleted there."""
    target = f"{REGISTRY}/{_new_name()}:t"
    assert digest_of(target, images.images) is None

    reference = pushed(target)

    name, digest = reference.split("@")
    assert digest_of(target, images.images) == digest
    engine.images.remove(target)
    assert run(reference, "import os; print(os.path.getsize('/opt/random'))") == "300000\n"
    url = f"http://{REGISTRY}/v2/{name.removeprefix(f'{REGISTRY}/')}/manifests/{digest}"
    assert requests.delete(url, timeout=60).status_code == 202
    assert digest_of(target, images.images) is None


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that wants a password; its host and port."""
    program = shutil.which("docker-registry")
    assert program, "the engine's set-up installs docker-registry"
    folder = tmp_path_factory.mktemp("locked")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "htpasswd").write_text(f"{HTPASSWD}\n")
    (folder / "config.yml").write_text(CONFIG.format(address=address))
    testcontainers_config.ryuk_disabled = True  # its image is in a public registry, which not every machine reaches
    container = DockerContainer(os.environ["SKYWARD_BASE"], command="docker-registry serve /locked/config.yml")
    container.with_kwargs(network_mode="host")
    container.with_volume_mapping(program, "/usr/local/bin/docker-registry").with_volume_mapping(str(folder), "/locked")
    with container.waiting_for(LogMessageWaitStrategy("listening on").with_startup_timeout(60)):
        yield address


def _login(home: Path, registry: str, password: str) -> None:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (home / "docker" / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def test_a_registry_with_a_password(
    locked: str,
    pushed: Push,
    own_home: Path,
    images: EngineImages,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Push and look-up work with a login, and the password is in no log, output or file of the cache."""
    caplog.set_level(logging.DEBUG)
    _login(own_home, locked, PASSWORD)
    target = f"{locked}/{_new_name()}:t"

    reference = pushed(target)

    assert digest_of(target, images.images) == reference.partition("@")[2]
    out, err = capfd.readouterr()
    kept = "".join(path.read_text() for path in (own_home / "cache").rglob("*.json"))
    assert reference.partition("@")[2] in kept
    for secret in (PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()):
        assert secret not in caplog.text + out + err + kept


@pytest.mark.parametrize("password", ["wrong-canary", None])
def test_a_wrong_password_or_none(
    locked: str, pushed: Push, own_home: Path, images: EngineImages, password: str | None
) -> None:
    """Look-up and push say what to do."""
    if password:
        _login(own_home, locked, password)
    target = f"{locked}/{_new_name()}:t"
    for act in (partial(pushed, target), partial(digest_of, target, images.images)):
        with pytest.raises(RegistryError) as caught:
            act()
        assert f"docker login {locked}" in caught.value.remedy
        assert "canary" not in str(caught.value)


def test_a_private_base(
    locked: str,
    pushed: Push,
    own_home: Path,
    images: EngineImages,
    engine: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Engine and builder get it with a login that only skyward knows: a variable of CI, and no configuration."""
    _login(own_home, locked, PASSWORD)
    name = f"{locked}/{_new_name()}:t"
    pushed(name)
    engine.images.remove(name)
    config = own_home / "docker" / "config.json"
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", config.read_text())
    config.unlink()

    images.pull(name)
    assert images.inspect(name)
    engine.images.remove(name)

    (own_home / "Dockerfile").write_text(f"ARG BASE={name}\nFROM $BASE\nLABEL private=yes\n")
    image = Image(base=Dockerfile(str(own_home / "Dockerfile"), context=str(own_home / "docker")))
    plan = plan_for(image, images, python=local_minor(), platform=AMD64)
    assert engine.images.get(plan.base).labels["private"] == "yes"
    engine.images.remove(plan.base, force=True)  # the engine may still be removing the container that looked into it

    monkeypatch.delenv("DOCKER_AUTH_CONFIG")
    with pytest.raises(ImageNotFoundError, match="docker login"):
        images.pull(name)
    assert PASSWORD not in "".join(capfd.readouterr())


def test_a_credential_program(
    locked: str, own_home: Path, images: EngineImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program named in Docker's configuration opens the registry."""
    (own_home / "docker" / "config.json").write_text(json.dumps({"credHelpers": {locked: "skyward-test"}}))
    program = own_home / "docker-credential-skyward-test"
    answer = json.dumps({"ServerURL": locked, "Username": USER, "Secret": PASSWORD})
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own_home}:{os.environ['PATH']}")
    assert digest_of(f"{locked}/{_new_name()}:t", images.images) is None
