"""Engines of the tests' own, beside the one under test: a fresh one of its kind, and one of Debian's next release.

The newer one is what users of buildx have: engine 26 with its images in containerd. Its packages are unpacked into a
folder, so nothing of the machine changes. Whatever an engine keeps lies in a temporary folder and goes with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from scripts.engine import daemon, debian, mounts, processes, sources

NEWER = {"12": ("bookworm", "trixie")}  # Debian's version, its name, and the name of the release to take packages of
PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "docker-compose", "containerd")
START_LIMIT_S = 180


@dataclass(frozen=True)
class OwnEngine:
    """An engine of a test's own.

    Attributes:
        env: what makes skyward and the docker command use it, and start from its base image.
    """

    env: Mapping[str, str]

    def cli(self, *words: str) -> str:
        """What a docker command prints."""
        command = [self.env["SKYWARD_DOCKER_CLI"], *words]
        env = {**os.environ, **self.env}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=250).stdout

    @contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        client = docker.DockerClient(base_url=self.env["DOCKER_HOST"], timeout=250)
        try:
            yield client
        finally:
            client.close()


@dataclass(frozen=True)
class Release:
    """The programs of one release of Docker.

    Attributes:
        path: where they are looked for.
        settings: of its engines.
        env: variables for its docker command.
    """

    path: str
    settings: Mapping[str, object]
    env: Mapping[str, str]

    @contextmanager
    def engine(self) -> Iterator[OwnEngine]:
        """An engine that has built nothing yet, with the suite's base image; skips where none can be started."""
        with _folder() as folder, _running(folder, self) as address:
            engine = OwnEngine({**self.env, "DOCKER_HOST": address})
            yield OwnEngine({**engine.env, "SKYWARD_BASE": _base(engine)})


def present_release() -> Release:
    """The machine's own; skips where there is no program of an engine."""
    _need_root()
    if shutil.which("dockerd", path=daemon.daemon_path()) is None:
        pytest.skip("this machine uses an engine from elsewhere, and has no dockerd to start a second one")
    return Release(daemon.daemon_path(), {}, {"SKYWARD_DOCKER_CLI": os.environ.get("SKYWARD_DOCKER_CLI", "docker")})


@contextmanager
def newer_release() -> Iterator[Release]:
    """Engine 26 with buildx, compose 2 and images in containerd; skips where Debian's packages cannot be had."""
    _need_root()
    with _folder() as folder:
        _unpack(folder)
        programs = folder / "root" / "usr"
        plugins = folder / "config" / "cli-plugins"
        plugins.mkdir(parents=True)
        for name in ("docker-buildx", "docker-compose"):
            (plugins / name).symlink_to(programs / "libexec" / "docker" / "cli-plugins" / name)
        yield Release(
            path=f"{programs / 'sbin'}:{programs / 'bin'}:{daemon.daemon_path()}",
            settings={"features": {"containerd-snapshotter": True}},
            env={"SKYWARD_DOCKER_CLI": str(programs / "bin" / "docker"), "DOCKER_CONFIG": str(folder / "config")},
        )


def _need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("an engine of the tests' own needs root")


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that is gone afterwards, with what is mounted below it. Its path is short: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="skyward-engine-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        mounts.remove(folder)


def _unpack(folder: Path) -> None:
    """Get the packages by this machine's own sources, with the release's name changed, and unpack them."""
    release = debian.release()
    if release.get("VERSION_ID") not in NEWER or release.get("ID") != "debian":
        pytest.skip(f"packages of a newer engine are taken from Debian's next release, which {release} has not")
    old, new = NEWER[release["VERSION_ID"]]
    (folder / "next.sources").write_text(sources.machine_sources(old).replace(old, new))
    for name in ("lists/partial", "cache/archives/partial", "packages"):
        (folder / name).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": folder / "next.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    for words in (["update"], ["download", *PACKAGES]):
        done = subprocess.run(
            [*apt, *words], cwd=folder / "packages", capture_output=True, text=True, timeout=250, check=False
        )
        if done.returncode:
            pytest.skip(f"the packages of a newer engine cannot be had here: {done.stderr.strip()[-300:]}")
    for package in (folder / "packages").glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True, timeout=60)
        package.unlink()
    shutil.rmtree(folder / "lists")


@contextmanager
def _running(folder: Path, release: Release) -> Iterator[str]:
    """An engine of a release, by its address."""
    dockerd = shutil.which("dockerd", path=release.path)
    assert dockerd
    run = folder / "run"
    run.mkdir()
    key = {"deprecated-key-path": str(folder / "key.json")} if _version(dockerd) < 23 else {}
    (folder / "daemon.json").write_text(json.dumps({**release.settings, **key}))
    argv = [
        dockerd,
        f"--config-file={folder / 'daemon.json'}",
        f"--data-root={folder / 'data'}",
        f"--exec-root={run}",
        f"--pidfile={run / 'docker.pid'}",
        f"--host=unix://{run / 'docker.sock'}",
        *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
    ]
    if not Path("/run/systemd/system").is_dir():
        argv.append("--exec-opt=native.cgroupdriver=cgroupfs")
    own = {name: value for name, value in os.environ.items() if name not in ("DOCKER_HOST", "NOTIFY_SOCKET")}
    own["PATH"] = release.path
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own, start_new_session=True
        )
    try:
        _await(run / "docker.sock", process, folder / "dockerd.log")
        yield f"unix://{run / 'docker.sock'}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for orphan in processes.naming(run):
            processes.stop(orphan, patience_s=5)


def _version(dockerd: str) -> int:
    said = subprocess.run([dockerd, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    return daemon.major_version(said)


def _await(socket: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not daemon.answers(socket):
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_text(errors="replace")[-600:]
            pytest.skip(f"a second engine does not start on this machine: {words}")
        time.sleep(0.05)


def _base(engine: OwnEngine) -> str:
    """The base of the engine under test, by way of the suite's registry, under the name it has there."""
    name, registry = os.environ["SKYWARD_BASE"], os.environ.get("SKYWARD_REGISTRY")
    if not registry:
        pytest.skip("without a registry the base image cannot be given to a second engine")
    engine.cli("pull", "--quiet", f"{registry}/{name}")
    engine.cli("tag", f"{registry}/{name}", name)
    return name
