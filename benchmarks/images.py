"""Compiled images against Dockerfiles written by hand: size, what caches leave, and the cost of edits.

python benchmarks/images.py                 # all cases; prints, and writes them into benchmarks/results/images.json
python benchmarks/images.py sklearn fastapi

All sides of a case start from one base and install the same locked packages, those with uv from one cache. Cases of
`images/` are measured against a Dockerfile of their own, the others against a multi-stage one with uv and one with pip
alone. The one package more is a new small wheel of pure Python in every run, so that no builder has seen it; the edit
of apt adds a package of some kilobytes. A cold build uses no layer of an earlier one. Compiled images are built first,
and so fill uv's cache for the others. What a run makes is removed at its end: images, a registry of its own, the wheel.
Layers stay in the builder's cache, which is the engine's to clear.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import docker

from skyward.builder.docker.command import find_command
from skyward.builder.events import Event
from skyward.builder.plans import ensure, plan_for
from skyward.builder.registry.pushing import push
from skyward.builder.site.settings import place_files, read_site, site_script
from skyward.builder.sources.declared import load
from skyward.builder.store import EngineImages
from skyward.engine import Images, find_engine
from skyward.image import Plan
from skyward.image.lock import index_id
from skyward.model.image import Image
from skyward.plugins.registry import declared_image

ROOT = Path(__file__).parents[1]
DECLARED = ("sklearn", "torch-cpu")
APPLICATIONS = {
    "fastapi": ("fastapi[standard]", "sqlalchemy", "alembic", "httpx", "redis", "pydantic-settings"),
    "transformers-torch": ("torch==2.13.0", "transformers"),
    "160-packages": tuple((ROOT / "benchmarks/by_hand/160-packages.txt").read_text(encoding="utf-8").split()),
}
APT, APT_MORE = ("hello",), ("hello", "tree")
PLATFORM = "linux/amd64"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
CACHES = ("root/.cache/", "run/", "tmp/", "var/tmp/", "var/cache/apt/", "var/lib/apt/lists/")
REGISTRY_CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: {address}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The layers of a pushed image: all bytes in the registry, and those that it did not have."""

    size_bytes: int
    sent_bytes: int


@dataclass
class Bench:
    """One engine, one registry, and what was made on them."""

    images: EngineImages
    client: Any
    registry: str
    place: Path
    made: list[str] = field(default_factory=list)
    pushed: dict[str, set[str]] = field(default_factory=dict)  # layers, by repository

    def plan(self, image: Image) -> Plan:
        return plan_for(image, self.images, python=PYTHON, platform=PLATFORM, root=ROOT / "images")

    def compiled(self, image: Image) -> tuple[str, dict[str, float]]:
        """Lock and build with skyward."""
        started = time.perf_counter()
        plan = self.plan(image)
        locked = time.perf_counter()
        if self.images.inspect(plan.tag) is None:
            self.made.append(plan.tag)
        ensure(plan, self.images, _quiet)
        return plan.tag, {"lock_s": locked - started, "build_s": time.perf_counter() - locked}

    def by_hand(self, name: str, plan: Plan, *, cold: bool = False) -> tuple[str, dict[str, float]]:
        """Build the Dockerfile in `by_hand/` beside this file, with a plan's packages; where `cold`, from nothing."""
        tag = f"skyward-bench:{name}-{secrets.token_hex(4)}"
        with TemporaryDirectory(dir=self.place) as folder:
            context = Path(folder)
            assert plan.lock
            scoped = [package for package in plan.lock.packages if package.index]
            rest = [package for package in plan.lock.packages if not package.index]
            wheels = context / "wheels"  # those of this machine's folders; a build has them in its context
            wheels.mkdir()
            for file, packages in (("torch.txt", scoped), ("requirements.txt", rest)):
                for place in (context, wheels):
                    (place / file).write_text("".join(f"{package.line}\n" for package in packages))
            place_files(read_site(), plan, wheels)
            script = site_script(read_site(), plan) + "export UV_FIND_LINKS=/run/wheels PIP_FIND_LINKS=/run/wheels\n"
            for package in scoped[:1]:
                name = f"SKYWARD_INDEX_{index_id(package.index)}"
                script += f'[ "${{{name}:-none}}" = none ] || TORCH_FROM="--default-index ${name}"\n'
                script += f'[ "${{{name}-}}" != none ] || TORCH_FROM=--no-index\n'
            (context / "site.sh").write_text(script)
            command = find_command()
            words = [*command.words, "--progress=plain", "--network=host", "--build-arg", f"BASE={plan.base}"]
            words += ["--build-arg", f"APT={' '.join(plan.image.apt)}", *(["--no-cache"] if cold else [])]
            words += ["--secret", f"id=site,src={context}/site.sh", "--tag", tag]
            words += ["--file", str(ROOT / f"benchmarks/by_hand/{name}.Dockerfile"), folder]
            started = time.perf_counter()
            done = subprocess.run(
                words, capture_output=True, text=True, env={**os.environ, "DOCKER_BUILDKIT": "1"}, check=False
            )
            seconds = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"the Dockerfile of {name} failed:\n{done.stderr[-3000:]}")
        self.made.append(tag)
        return tag, {"build_s": seconds}

    def push(self, tag: str, repository: str) -> tuple[Pushed, float]:
        """Push an image; how large its layers are in the registry, and how long it takes."""
        started = time.perf_counter()
        target = f"{self.registry}/{repository}:{tag.rpartition(':')[2]}"
        self.made.append(target)
        reference = push(tag, target, engine=self.images.images, report=_quiet)
        seconds = time.perf_counter() - started
        name, digest = reference.removeprefix(f"{self.registry}/").split("@")
        accept = {
            "Accept": "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
        }
        asked = urllib.request.Request(f"http://{self.registry}/v2/{name}/manifests/{digest}", headers=accept)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            layers = {layer["digest"]: layer["size"] for layer in json.load(answer)["layers"]}
        there = self.pushed.setdefault(repository, set())
        sent = sum(size for layer, size in layers.items() if layer not in there)
        there.update(layers)
        return Pushed(size_bytes=sum(layers.values()), sent_bytes=sent), seconds

    def remove(self) -> None:
        for tag in dict.fromkeys(reversed(self.made)):
            with suppress(docker.errors.ImageNotFound):
                self.client.images.remove(tag, force=True)


def measure(name: str, bench: Bench) -> dict[str, Any]:
    """Both sides of one case."""
    image = declared_image(load(ROOT / f"images/{name}.toml"), platform=PLATFORM, python=PYTHON)
    more = image.pip_install(extra_package(bench.place))
    found: dict[str, Any] = {}
    for side in ("skyward", "by hand"):
        repository = f"{name}-{side.replace(' ', '-')}"
        tag, _ = bench.compiled(image) if side == "skyward" else bench.by_hand(name, bench.plan(image))
        base = len(bench.client.images.get(bench.plan(image).base).attrs["RootFS"]["Layers"])
        whole, _ = bench.push(tag, repository)
        again, seconds = bench.compiled(more) if side == "skyward" else bench.by_hand(name, bench.plan(more))
        added, push_s = bench.push(again, repository)
        found[side] = {
            "bytes": bench.client.images.get(tag).attrs["Size"],
            "pushed_bytes": whole.size_bytes,
            "bytes_in_caches": bytes_in_caches(bench.client.images.get(tag), base),
            "one_package_more": {
                **{key: round(value, 2) for key, value in seconds.items()},
                "push_s": round(push_s, 2),
                "sent_bytes": added.sent_bytes,
                "sent_share": round(added.sent_bytes / added.size_bytes, 4),
            },
        }
    found["size_ratio"] = round(found["skyward"]["bytes"] / found["by hand"]["bytes"], 4)
    return found


def compare(name: str, bench: Bench) -> dict[str, Any]:
    """A compiled image, and the two usual ways to write it by hand: cold builds, one package more, an edit of apt."""
    # a variable that no build has seen: no layer of packages is taken from an earlier one
    image = Image(pip=[*APPLICATIONS[name]], apt=[*APT], build_env={"BENCHMARK": secrets.token_hex(4)})
    edits = {"one_package_more": image.pip_install(extra_package(bench.place)), "apt": replace(image, apt=[*APT_MORE])}
    found: dict[str, Any] = {}
    for side in ("skyward", "multi-stage", "naive"):

        def build(of: Image, *, cold: bool = False, side: str = side) -> tuple[str, dict[str, float]]:
            return bench.compiled(of) if side == "skyward" else bench.by_hand(side, bench.plan(of), cold=cold)

        repository = f"{name}-{side}"
        tag, seconds = build(image, cold=True)
        whole, _ = bench.push(tag, repository)
        found[side] = {
            "bytes": bench.client.images.get(tag).attrs["Size"],
            "pushed_bytes": whole.size_bytes,
            "cold_s": round(seconds["build_s"], 1),
        }
        for edit, edited in edits.items():
            again, seconds = build(edited)
            pushed, _ = bench.push(again, repository)
            found[side][edit] = {
                "build_s": round(seconds["build_s"], 1),
                "sent_bytes": pushed.sent_bytes,
                "sent_share": round(pushed.sent_bytes / pushed.size_bytes, 4),
            }
    lock = bench.plan(image).lock
    return {"packages": len(lock.packages) if lock else 0, **found}


def extra_package(place: Path) -> str:
    """A new package of twenty modules of 5 KB, in a folder that both sides look into; gives its requirement."""
    name = f"extra{secrets.token_hex(6)}"
    info, folder = f"{name}-1.0.dist-info", place / "wheels"
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for number in range(20):
            wheel.writestr(
                f"{name}/module{number}.py", "".join(f"X{n} = {secrets.token_hex(8)!r}\n" for n in range(200))
            )
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}==1.0"


def bytes_in_caches(image: Any, base_layers: int) -> int:
    """Bytes of files below the caches of pip, uv and apt, and temporary folders, in the layers above the base."""
    with tarfile.open(fileobj=io.BufferedReader(_Stream(image.save())), mode="r|") as archive:
        own: dict[str, int] = {}
        order: list[str] = []
        for member in archive:
            if member.name == "manifest.json":
                content = archive.extractfile(member)
                order = json.load(content)[0]["Layers"] if content else []
            elif member.isfile() and (layer := archive.extractfile(member)):
                with suppress(tarfile.ReadError), tarfile.open(fileobj=layer, mode="r|*") as files:
                    own[member.name] = sum(
                        each.size for each in files if each.isfile() and each.name.startswith(CACHES)
                    )
    return sum(own[name] for name in order[base_layers:])


class _Stream(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._left = iter(chunks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._chunks, b"")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


@contextmanager
def opened() -> Iterator[Bench]:
    """The engine of this environment and a registry of our own, for the time of a `with` block."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="bench-images-")))
        registry = stack.enter_context(_registry(place))
        before = os.environ.get("PIP_FIND_LINKS", "")
        os.environ["PIP_FIND_LINKS"] = f"{before} {place / 'wheels'}".strip()
        stack.callback(os.environ.__setitem__, "PIP_FIND_LINKS", before)
        connection = Images(find_engine())
        stack.callback(connection.close)
        client = stack.enter_context(_closing(docker.from_env()))
        bench = Bench(EngineImages(connection), client, registry, place)
        stack.callback(bench.remove)
        yield bench


@contextmanager
def _closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.close()


@contextmanager
def _registry(place: Path) -> Iterator[str]:
    program = shutil.which("docker-registry")
    if program is None:
        raise RuntimeError("docker-registry is not installed; `make engine` installs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (place / "registry.yml").write_text(REGISTRY_CONFIG.format(folder=place, address=address))
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    words, nowhere = [program, "serve", str(place / "registry.yml")], subprocess.DEVNULL
    process = subprocess.Popen(words, env=env, stdout=nowhere, stderr=nowhere)
    try:
        host, _, port = address.partition(":")
        for _ in range(200):
            with suppress(OSError), socket.create_connection((host, int(port)), 1):
                break
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()


def _quiet(event: Event) -> None:
    """Nobody listens."""


def main(names: list[str]) -> int:
    file = ROOT / "benchmarks/results/images.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    with opened() as bench:
        found = {
            name: (measure if name in DECLARED else compare)(name, bench)
            for name in names or (*DECLARED, *APPLICATIONS)
        }
    file.write_text(json.dumps({**kept, **found}, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
