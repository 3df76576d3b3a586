"""Images pushed, found, run by digest and added to, on a real registry and engine; logins against a real registry."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from skyward.builder.registry.existence import Absent, Exists, Unknown

from skyward.builder import plan_for
from skyward.builder.docker.build import build_base
from skyward.builder.registry import existence
from skyward.builder.registry.pushing import push, push_zstd
from skyward.builder.store import EngineImages
from skyward.engine import Images, find_engine
from skyward.errors import EngineError, ImageNotFoundError, RegistryError
from skyward.model.image import Dockerfile, Image
from skyward.model.image_fields import local_minor

AMD64 = "linux/amd64"
REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
USER, PASSWORD = "ann", "canary-9d41c7"
HTPASSWD = r"ann:$2b$05$Ab3Ab3Ab3Ab3Ab3Ab3Ab3eGUM8pmcopyjPE7Q4DejUpdb/VwbJoNy"  # bcrypt of that password
CONFIG = """version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: {address}}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""
Push = Callable[..., Any]


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

    def do(target: str, image: str = base) -> Any:
        made.append(target)
        return push(image, target, platform=AMD64, engine=images, report=print)

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


def test_push_and_run_by_digest(pushed: Push, run: Callable[[str, str], str], engine: Any) -> None:
    """What was absent exists after a push, with the digest that the engine can pull."""
    target = f"{REGISTRY}/{_new_name()}:t"
    assert existence.check(target, platform=AMD64) == Absent()

    done = pushed(target)

    assert existence.check(target, platform=AMD64, trust_s=0) == Exists(done.digest, done.reference)
    assert existence.check(target, platform="linux/arm64") == Absent()
    engine.images.remove(target)
    assert run(done.reference, "import os; print(os.path.getsize('/opt/random'))") == "300000\n"


def test_what_a_push_sends(pushed: Push, engine: Any) -> None:
    """Layers that the registry has are not counted as sent: a second push of the same sends none."""
    name = _new_name()

    with _new_image(engine) as image:
        first, second = (pushed(f"{REGISTRY}/{name}:{tag}", image=image) for tag in ("one", "two"))

    assert 300_000 < first.sent_bytes <= first.size_bytes
    assert second.sent_bytes == 0
    assert second.digest == first.digest


def test_zstd_where_the_engine_can(base: str, engine: Any, run: Callable[[str, str], str]) -> None:
    """Layers are compressed as asked where the engine's store can; elsewhere a sentence says what it takes."""
    target = f"{REGISTRY}/{_new_name()}:t"
    cli = os.environ.get("SKYWARD_DOCKER_CLI", "docker")
    has_buildx = subprocess.run([cli, "buildx", "version"], capture_output=True, check=False).returncode == 0
    if has_buildx and "io.containerd.snapshotter" in str(engine.info()["DriverStatus"]):
        done = push_zstd(base, target, platform=AMD64, report=print)
        manifest = requests.get(
            f"http://{REGISTRY}/v2/{target.removeprefix(f'{REGISTRY}/').removesuffix(':t')}/manifests/{done.digest}",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
            timeout=10,
        ).json()
        assert all(layer["mediaType"].endswith("tar+zstd") for layer in manifest["layers"])
        assert existence.check(target, platform=AMD64, trust_s=0) == done
        engine.images.remove(target)
        assert run(done.reference, "import os; print(os.path.getsize('/opt/random'))") == "300000\n"
    else:
        with pytest.raises(EngineError, match=r"zstd.*push with gzip"):
            push_zstd(base, target, platform=AMD64, report=print)
        assert existence.check(target, platform=AMD64) == Absent()


def test_an_image_that_the_engine_does_not_have(pushed: Push) -> None:
    """The error names the image."""
    with pytest.raises(ImageNotFoundError, match="skyward-test:nothing"):
        pushed(f"{REGISTRY}/{_new_name()}:t", image="skyward-test:nothing")


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
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, address=address))
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    command = [program, "serve", str(folder / "config.yml")]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = threading.Thread(target=process.stderr.read)
        try:
            assert any("listening on" in line for line in process.stderr), "the registry ended at once"
            said.start()  # goes on reading, so that the registry never waits for us
            yield address
        finally:
            process.terminate()
            process.wait(10)
            said.join()


def _login(home: Path, registry: str, password: str) -> None:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (home / "docker" / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))


def test_a_registry_with_a_password(
    locked: str, pushed: Push, own_home: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Push and look-up work with a login, and the password is in no log, output, memo or repr."""
    caplog.set_level(logging.DEBUG)
    _login(own_home, locked, PASSWORD)
    name = f"{locked}/{_new_name()}"

    done = pushed(f"{name}:t")

    assert existence.check(f"{name}:t", platform=AMD64, trust_s=0) == Exists(done.digest, done.reference)
    out, err = capfd.readouterr()
    memo = "".join(path.read_text() for path in (own_home / "cache").rglob("*.json"))
    assert f"{name}:t" in memo
    said = caplog.text + out + err + memo + repr(done)
    for secret in (PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()):
        assert secret not in said


def test_a_wrong_password(locked: str, pushed: Push, own_home: Path) -> None:
    """Look-up and push end within seconds, and say what to do."""
    _login(own_home, locked, "wrong-canary")
    target = f"{locked}/{_new_name()}:t"
    started = time.monotonic()

    found = existence.check(target, platform=AMD64)
    with pytest.raises(RegistryError) as not_pushed:
        pushed(target)

    assert time.monotonic() - started < 5
    assert isinstance(found, Unknown)
    for error in (found.error(), not_pushed.value):
        assert f"docker login {locked}" in error.remedy
        assert "wrong-canary" not in str(error)


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
    assert plan.base_build
    build_base(plan, print, os.environ.get("DOCKER_HOST"), {})
    assert engine.images.get(plan.base_build.tag).labels["private"] == "yes"
    engine.images.remove(plan.base_build.tag)

    monkeypatch.delenv("DOCKER_AUTH_CONFIG")
    with pytest.raises(ImageNotFoundError, match="docker login"):
        images.pull(name)
    assert PASSWORD not in "".join(capfd.readouterr())


def test_a_credential_program(locked: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program named in Docker's configuration opens the registry; where it is missing the error names it."""
    (own_home / "docker" / "config.json").write_text(json.dumps({"credHelpers": {locked: "skyward-test"}}))
    target = f"{locked}/{_new_name()}:t"
    found = existence.check(target, platform=AMD64)
    assert isinstance(found, Unknown)
    assert "docker-credential-skyward-test" in found.reason

    program = own_home / "docker-credential-skyward-test"
    answer = json.dumps({"ServerURL": locked, "Username": USER, "Secret": PASSWORD})
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own_home}:{os.environ['PATH']}")
    assert existence.check(target, platform=AMD64) == Absent()


def test_no_login(locked: str) -> None:
    """Who is not logged in is asked to, and learns neither yes nor no."""
    found = existence.check(f"{locked}/{_new_name()}:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert f"docker login {locked}" in found.remedy


def test_an_image_deleted_in_the_registry(pushed: Push) -> None:
    """A known image is taken for there without a question; asked anew, it is absent."""
    target = f"{REGISTRY}/{_new_name()}:t"
    done = pushed(target)
    path = target.removeprefix(f"{REGISTRY}/").removesuffix(":t")
    answer = requests.delete(f"http://{REGISTRY}/v2/{path}/manifests/{done.digest}", timeout=10)
    assert answer.status_code == 202

    assert isinstance(existence.check(target, platform=AMD64), Exists)
    existence.forget(target, platform=AMD64)
    assert existence.check(target, platform=AMD64) == Absent()
