"""Pools on the containers of compose.yaml, on an engine with a bridge: a host of the stand, by a forwarded socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward as sky
from examples import compose as example
from scripts.stand.place import Stand
from skyward.builder.store import EngineImages
from skyward.cli.documents import compose_file
from skyward.engine import Images, find_engine
from skyward.errors import ProviderError
from skyward.nodes.process_id import current_user
from skyward.providers.base import PoolRequest
from skyward.providers.compose_project import Project
from skyward.testing.provider import ProviderConformance
from tests.e2e import functions, programs
from tests.e2e.engines import Release
from tests.e2e.rights_functions import leave, left, rights, writable
from tests.e2e.stand import wait_until

ROOT = Path(__file__).parents[2]
FILE = ROOT / "compose.yaml"
NODES = 3
IMAGE = example.IMAGE
REGISTRY = "skyward-test-registry"
# docker-compose 1.29 of Debian 12, and what it imports
PACKAGES = (
    *("docker-compose", "python3-docker", "python3-dockerpty", "python3-docopt", "python3-dotenv", "python3-texttable"),
    *("python3-websocket", "python3-yaml", "python3-jsonschema", "python3-distro", "python3-requests", "python3-attr"),
    *("python3-urllib3", "python3-pyrsistent", "python3-six", "python3-chardet", "python3-idna", "python3-certifi"),
    *("python3-cached-property", "python3-distutils", "python3-pkg-resources"),
)


@pytest.fixture(scope="module")
def compose_1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with Debian's docker-compose in it, unpacked beside the system; skips where it cannot be had."""
    folder = tmp_path_factory.mktemp("compose")
    got = subprocess.run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *PACKAGES],
        cwd=folder,
        capture_output=True,
        timeout=100,
        check=False,
    )
    packages = sorted(folder.glob("*.deb"))
    if got.returncode or not any("docker-compose_1.29" in package.name for package in packages):
        pytest.skip("docker-compose 1.29 cannot be had from this machine's package sources")
    for package in packages:
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True, timeout=60)
        package.unlink()
    (folder / "bin").mkdir()
    program = folder / "bin" / "docker-compose"
    usr = folder / "root" / "usr"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={usr}/lib/python3/dist-packages exec /usr/bin/python3 {usr}/bin/docker-compose "$@"\n'
    )
    program.chmod(0o755)
    yield folder / "bin"
    shutil.rmtree(folder / "root")


@pytest.fixture(scope="module")
def there(stand: Stand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """What makes skyward and compose use a host's engine, which has been given the images; it loses them afterwards."""
    if shutil.which("docker-registry") is None:
        pytest.skip("there is no docker-registry to make the registry's image of")
    host = stand.host(2)
    folder = tmp_path_factory.mktemp("engine")
    sock = Path("/tmp") / f"skyward-test-{os.getpid()}.sock"
    ssh = subprocess.Popen(
        [
            *("ssh", "-NT", "-o", "StreamLocalBindUnlink=yes", "-o", f"UserKnownHostsFile={stand.known_hosts}"),
            *("-o", "ExitOnForwardFailure=yes", "-i", str(stand.key), "-L", f"{sock}:/var/run/docker.sock", host.login),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_until(sock.exists, 120)
        env = {"DOCKER_HOST": f"unix://{sock}", "SKYWARD_REGISTRY_IMAGE": REGISTRY}
        given = give_images(env, folder)
        yield env
        host.run("docker", "rmi", *given)
    finally:
        ssh.terminate()
        ssh.wait(60)
        sock.unlink(missing_ok=True)


def give_images(env: Mapping[str, str], folder: Path) -> list[str]:
    """Bring base and nodes' image from the engine here, make the registry's of this machine's program; what is new."""
    docker, base = os.environ.get("SKYWARD_DOCKER_CLI", "docker"), os.environ["SKYWARD_BASE"]
    there = EngineImages(Images(find_engine(env["DOCKER_HOST"])))
    lacking = [tag for tag in (base, prebuilt()) if there.inspect(tag) is None]
    if lacking:
        save = subprocess.Popen([docker, "save", *lacking], stdout=subprocess.PIPE)
        with save:
            subprocess.run([docker, "load"], stdin=save.stdout, env={**os.environ, **env}, check=True, timeout=200)
    shutil.copy(str(shutil.which("docker-registry")), folder / "docker-registry")
    (folder / "config.yml").write_text(
        'version: 0.1\nstorage: {filesystem: {rootdirectory: /var/lib/registry}}\nhttp: {addr: ":5000"}\n'
    )
    (folder / "Dockerfile").write_text(
        f'FROM {base}\nCOPY docker-registry config.yml /\nCMD ["/docker-registry", "serve", "/config.yml"]\n'
    )
    old = {**os.environ, **env, "DOCKER_BUILDKIT": "0"}
    subprocess.run([docker, "build", "-q", "-t", REGISTRY, str(folder)], env=old, check=True, timeout=100)
    (folder / "docker-registry").unlink()
    return [REGISTRY, *lacking]


@pytest.fixture
def project(
    there: Mapping[str, str], compose_1: Path, monkeypatch: pytest.MonkeyPatch, stand: Stand
) -> Iterator[Project]:
    """A project of compose.yaml that is not up, for docker-compose 1.29; nothing of it is left afterwards."""
    for name, value in {**there, "PATH": f"{compose_1}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Project, "command", ("docker-compose",))  # also where there is a newer one
    project = Project(FILE, f"skytest{os.getpid()}")
    yield project
    if project.containers():
        project.down()
    host = stand.host(2)
    host.run("docker", "volume", "rm", "-f", f"{project.name}_registry")
    assert host.run("docker", "network", "ls", "-q", "--filter", f"name={project.name}") == ""


def provider(project: Project) -> sky.Compose:
    return sky.Compose(project.file, project=project.name)


@cache
def prebuilt() -> str:
    """The nodes' image, which is the example's as well, as the engine has it."""
    return str(sky.Docker().open(PoolRequest(pool_id="prebuilt", image=IMAGE)).prepare([]))


@contextmanager
def compose_2(release: Release) -> Iterator[None]:
    """Docker Compose 2 instead, as a part of the docker command."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in release.env.items():
            patch.setenv(name, value)
        patch.setattr(Project, "command", (release.env["SKYWARD_DOCKER_CLI"], "compose"))
        yield


def compose(project: Project, *words: str, **env: str) -> str:
    """What compose prints when a person types it in the clone."""
    command = [*project.command, "--project-name", project.name, *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pool_brings_the_file_up_and_down(project: Project, stand: Stand) -> None:
    """Each node has an address, at which the others reach it; the pool's key is in nothing that the engine tells."""
    with sky.ComputePool(provider(project), nodes=NODES, image=IMAGE) as pool:
        assert len({node.address for node in project.nodes()}) == NODES
        for found in rights() @ pool:
            assert (found["uid"], found["name"], found["home"]) == (10001, "skyward", "/home/skyward")
            assert (int(found["CapBnd"], 16), found["NoNewPrivs"], found["cwd"]) == (0, "1", "/work")
        assert writable() @ pool == [[]] * NODES
        places = functions.place() @ pool
        assert {place["addr"] for place in places} <= {node.address for node in project.nodes()}
        assert programs.hand_out(["a", "b", "c"]) @ pool == ["head keeps a", "node 1 got b", "node 2 got c"]
        assert {(found["pool"], found["user"]) for found in provider(project).find()} == {(pool.id, current_user())}
        seen = stand.host(2).run("docker", "inspect", *(node.container for node in project.nodes()))
        for node in project.nodes():
            seen += stand.host(2).run("docker", "top", node.container, "-o", "pid,args")
        assert "skyward.runner.entry.relay" in seen
        assert not any(node._key.hex() in seen for node in pool._table.nodes)
    assert not project.containers()


def test_the_example_trains_on_what_compose_has_built_and_brought_up(project: Project, newer_docker: Release) -> None:
    """`docker compose up` in a clone, with nothing set but where images come from here; then as a user runs it.

    The combined model is good on digits nobody has trained on, and what was up still is.
    """
    with compose_2(newer_docker):
        compose(project, "up", "--detach", SKYWARD_BASE=prebuilt())
        done = subprocess.run(
            [sys.executable, "examples/compose.py"],
            cwd=ROOT,
            env={**os.environ, "COMPOSE_PROJECT_NAME": project.name},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert "is up and runs skyward:node" in done.stderr
        combined = done.stdout.splitlines()[-1].split()
        assert combined[:2] == ["combined", "1347"]
        assert 0.9 < float(combined[2]) < 1
        assert len(project.nodes()) == NODES
        compose(project, "down", "--timeout", "1", "--rmi", "local")


def test_what_a_killed_client_has_brought_up_goes_after_it(
    project: Project, stand: Stand, newer_docker: Release
) -> None:
    """Containers and their network, by its reaper; with Compose 2."""
    text = "import skyward as sky, sys, time\nimage = sky.Image(pip=['scikit-learn'])\n"
    text += "with sky.ComputePool(sky.Compose(*sys.argv[1:]), nodes=3, image=image) as pool:\n"
    text += "    print(pool.id, flush=True)\n    time.sleep(100)\n"
    with compose_2(newer_docker):
        command = [sys.executable, "-c", text, str(project.file), project.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout
            pool = client.stdout.readline().strip()
            assert len(project.nodes()) == NODES
            client.kill()
    networks = ("docker", "network", "ls", "-q", "--filter", f"name={project.name}")
    wait_until(lambda: not project.containers() and stand.host(2).run(*networks) == "", 60)
    reaper = ["pgrep", "-f", f"skyward.providers.reaper compose {pool}"]
    wait_until(lambda: subprocess.run(reaper, stdout=subprocess.DEVNULL, check=False).returncode == 1, 60)


def test_what_was_up_stays_up_for_one_pool_after_another(project: Project) -> None:
    """A taken node is refused to a second pool; one whose client has ended, or is killed, is as it was."""
    project.up(SKYWARD_IMAGE=prebuilt())
    before = {node.container for node in project.nodes()}
    with sky.ComputePool(provider(project), nodes=2, image=IMAGE) as pool:
        assert functions.double(21) @ pool == [42, 42]
        with pytest.raises(ProviderError, match="others have taken 2"), sky.ComputePool(provider(project), nodes=2):
            raise AssertionError("a node has two pools")
        with sky.ComputePool(provider(project), nodes=1) as other:
            assert left() >> other == []
            leave() >> other
            wait_until(lambda: len(left() >> other) == 2 * 5 + 1 + 3 + 1, 120)  # its program starts in the background
        with sky.ComputePool(provider(project), nodes=1) as other:
            assert left() >> other == []
    with pytest.raises(ProviderError, match=r"needs 4 nodes of .* 3 run"), sky.ComputePool(provider(project), nodes=4):
        raise AssertionError("there are three")

    text = "import skyward as sky, sys, time\nfrom tests.e2e.rights_functions import leave\n"
    text += "with sky.ComputePool(sky.Compose(*sys.argv[1:]), nodes=3) as pool:\n"
    text += "    leave() @ pool\n    print('open', flush=True)\n    time.sleep(100)\n"
    command = [sys.executable, "-c", text, str(project.file), project.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        assert client.stdout.readline() == "open\n"
        client.kill()
    wait_until(lambda: all(runners(node.container) == 0 for node in project.nodes()), 60)
    with sky.ComputePool(provider(project), nodes=NODES) as pool:
        assert left() @ pool == [[]] * NODES
    assert {node.container for node in project.nodes()} == before


def runners(container: str) -> int:
    """How many programs of a taken node run in a container."""
    docker = os.environ.get("SKYWARD_DOCKER_CLI", "docker")
    words = [docker, "top", container, "-o", "pid,args"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum("skyward.runner" in line and not line.rstrip().endswith("standby") for line in lines)


class TestConformance(ProviderConformance):
    """The provider keeps the contract; all its pools here are of one project."""

    settings: ClassVar[Mapping[str, Any]] = {"image": IMAGE}
    lease_s = 10.0  # longer than bringing the project down
    settle_s = 120.0
    calls = ("prepare",)  # which brings the project up: clients that die at once would take each other's containers

    @pytest.fixture(autouse=True)
    def _file(self, project: Project, tmp_path: Path) -> None:
        self._where = (tmp_path / "compose.yaml", project.name)
        self._where[0].write_text(compose_file(2))

    def provider(self) -> sky.Compose:
        return sky.Compose(*self._where)
