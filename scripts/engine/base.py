"""The default base image: the official slim Python where a registry gives it, else one made from Debian's packages."""

import hashlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import daemon, debian, mounts, processes, registry, sources
from .console import SetupError, capture, run, say, step
from .place import Place

RECIPE_LABEL = "skyward.base"
ORIGIN_LABEL = "skyward.base.origin"
PULL_SILENCE_LIMIT_S = 15
PULL_LIMIT_S = 600
CHECK = "import ssl, sqlite3, ctypes, asyncio, zlib, lzma, bz2"

# What a container never reads. Licence texts stay, as in the official slim images.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
# What mmdebstrap copies from, or notes about, the machine that it runs on.
_TRACES = ("etc/hostname", "etc/resolv.conf", "var/log/*", "var/cache/debconf/*-old", "var/lib/dpkg/*-old")
_KEPT = ("/usr/share/doc/*/copyright",)
_DOCKERFILE = Path("dockerfiles") / "bases" / "python.Dockerfile"


@dataclass(frozen=True)
class Client:
    """A docker client that speaks BuildKit, and the engine it talks to."""

    binary: str
    docker_host: str

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "DOCKER_HOST": self.docker_host,
            "DOCKER_BUILDKIT": "1",
            "BUILDKIT_PROGRESS": "plain",
            # The engine's own builder sees local images; one that the user chose may not.
            "BUILDX_BUILDER": "default",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        }

    def ask(self, *arguments: str, timeout_s: float = 60) -> str | None:
        """What a docker command prints; None when it fails."""
        return capture([self.binary, *arguments], env=self.env, timeout_s=timeout_s)

    def label(self, image: str, key: str) -> str | None:
        """A label of a local image; None when the image is not there."""
        out = self.ask("image", "inspect", "--format", f'{{{{index .Config.Labels "{key}"}}}}', image)
        return None if out is None else out.strip()

    def do(self, place: Place, *arguments: str, timeout_s: float = 600) -> None:
        """Run a docker command that must succeed."""
        run([self.binary, *arguments], log=place.log("base"), env=self.env, timeout_s=timeout_s)


def python_minor() -> str:
    """The minor version of the Python that runs this script, for instance 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def name(minor: str) -> str:
    """The local image that pools use as their default base."""
    return f"skyward/base:py{minor}"


def recipe(place: Place, minor: str) -> str:
    """Hash of everything that decides what the base holds; an image that carries it is not made again."""
    text = f"{_bootstrap(minor)}\n{(place.clone / _DOCKERFILE).read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _bootstrap(minor: str) -> str:
    """Everything that decides what a root file system made on this machine holds."""
    if not debian.is_debian():
        return minor
    codename = debian.release().get("VERSION_CODENAME", "")
    return "\n".join([*_bootstrap_options(minor), *debian.acquire_options(), sources.machine_sources(codename)])


def ensure(place: Place, client: Client) -> str:
    """Make the base unless the engine has it from this very recipe; return its name."""
    minor = python_minor()
    image, wanted = name(minor), recipe(place, minor)
    if client.label(image, RECIPE_LABEL) == wanted:
        say(f"the base image {image} is there")
    else:
        _make(place, client, image=image, minor=minor, wanted=wanted)
    return image


def _make(place: Place, client: Client, *, image: str, minor: str, wanted: str) -> None:
    official = f"python:{minor}-slim"
    refusal = _pull(client, official)
    if refusal is None:
        origin = official
    else:
        say(f"{official} cannot be pulled ({refusal}); making the base from this machine's Debian packages instead")
        origin = _import_debian(place, client, minor, refusal)
    with step(f"building {image} on {origin}"), tempfile.TemporaryDirectory() as empty:
        client.do(
            place,
            *("build", "--network=host", "--file", str(place.clone / _DOCKERFILE), "--tag", image),
            *("--build-arg", f"FROM_IMAGE={origin}", "--build-arg", f"PYTHON_MINOR={minor}"),
            *("--label", f"{RECIPE_LABEL}={wanted}", "--label", f"{ORIGIN_LABEL}={origin}", empty),
        )
    with step(f"checking {image}"):
        client.do(place, "run", "--rm", "--network=host", image, "python", "-c", CHECK)


def _pull(client: Client, official: str) -> str | None:
    """Pull the official image; None on success, else why it cannot be had.

    Where the hub is not reachable some networks never answer, so the first word must come soon.
    """
    if client.ask("image", "inspect", official) is not None:
        say(f"{official} is there")
        return None
    with step(f"asking for {official}"):
        pull = subprocess.Popen(
            [client.binary, "pull", official], env=client.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert pull.stdout is not None
        spoken, _, _ = select.select([pull.stdout], [], [], PULL_SILENCE_LIMIT_S)
        try:
            output, _ = pull.communicate(timeout=PULL_LIMIT_S if spoken else 0.01)
        except subprocess.TimeoutExpired:
            pull.kill()
            pull.wait()
            return f"no answer within {PULL_LIMIT_S if spoken else PULL_SILENCE_LIMIT_S} s"
        if pull.returncode == 0:
            return None
        lines = output.decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"status {pull.returncode}"


def _bootstrap_options(minor: str) -> list[str]:
    options = ["--mode=root", "--variant=apt", f"--include=python{minor}-venv,ca-certificates"]
    # Without it, apt satisfies "usrmerge | usr-is-merged" with the first, which brings 47 MB of Perl.
    options += ["--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr"]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options += [f"--dpkgopt=path-include={pattern}" for pattern in _KEPT]
    options += [f'--customize-hook=cd "$1" && rm -rf {" ".join(_TRACES)}']
    return options


def _import_debian(place: Place, client: Client, minor: str, refusal: str) -> str:
    """Make a root file system from the machine's own apt sources and import it; return the image's name."""
    release = debian.release()
    system, codename = release.get("PRETTY_NAME", "this system"), release.get("VERSION_CODENAME", "")
    if shutil.which("mmdebstrap", path=daemon.daemon_path()) is None:
        debian.install(place, ["mmdebstrap"], purpose="making a base image")
    if f"python{minor}-venv" not in debian.available([f"python{minor}-venv"]):
        raise SetupError(
            f"no base image is available: python:{minor}-slim cannot be pulled ({refusal}), and {system} has no "
            f"package of the Python {minor} that runs this. Use the distribution's own Python for everything "
            "(make PYTHON=/usr/bin/python3 ...), or bring that image here with `docker load`."
        )
    image = f"skyward/{release.get('ID', 'debian')}:{codename}-py{minor}"
    machine = sources.machine_sources(codename)
    work = place.root / "base"
    _clear(work)
    work.mkdir()
    source_file, archive = work / "distribution.sources", work / "root.tar"
    source_file.write_text(machine)
    with step(f"making a root file system of {system} with Python {minor}"):
        argv = ["mmdebstrap", *_bootstrap_options(minor), *debian.acquire_options(), codename]
        env = {**debian.proxies(), **os.environ, "TMPDIR": str(work)}
        run([*argv, str(archive), str(source_file)], log=place.log("base"), env=env)
    with step(f"importing it as {image}"):
        client.do(place, "import", str(archive), image)
    _clear(work)
    return image


def _clear(work: Path) -> None:
    """Remove the work folder, and end what a killed run left working in it."""
    for leftover in processes.naming(work):
        processes.stop(leftover, patience_s=5)
    mounts.remove(work)


def publish(place: Place, client: Client, image: str, address: str) -> None:
    """Push the base to a registry that does not have this very image."""
    remote = f"{address}/{image}"
    pushed = client.ask("image", "inspect", "--format", "{{.Id}}", remote)
    path = f"/v2/{image.replace(':', '/manifests/')}"
    if pushed == client.ask("image", "inspect", "--format", "{{.Id}}", image) and registry.answers(address, path):
        return
    with step(f"pushing {image} to {address}"):
        client.do(place, "tag", image, remote)
        client.do(place, "push", remote)
