"""Time from the pull of an image to the end of `import torch`, on a host that has nothing, over 100 Mbit/s.

python -m benchmarks.pull                   # prints, and writes benchmarks/results/pull.json

The host is a second engine on this machine, which starts empty for each image: one of the release under test, and
Docker 26 with its images in containerd, which can also unpack zstd. It pulls from a registry on the loopback interface
through a proxy that passes 12.5 MB/s in all, however many layers come at once. All images hold the same packages.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import requests

from benchmarks.images import APPLICATIONS, PLATFORM, ROOT, Bench, opened
from skyward.builder.registry.pushing import push_zstd
from skyward.model.image import Image
from tests.e2e.engines import OwnEngine, Release, newer_release, present_release

BYTES_PER_S = 12_500_000
_PIECE = 1 << 16
_OCI = "application/vnd.oci.image.manifest.v1+json"
_DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
SNAPSHOTTER = "not possible: its snapshotter is a program beside containerd, which Debian does not package"


class _Link:
    """Passes connections on to an address, all of them together at one speed."""

    def __init__(self, host: str, port: int) -> None:
        self._target, self._free_at = (host, port), 0.0
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        threading.Thread(target=self._loop.run_forever, name="link", daemon=True).start()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        ways = self._pass(reader, there_writer), self._pass(there_reader, writer)
        with suppress(asyncio.CancelledError):  # by `_end`
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE):
                self._free_at = max(self._free_at, time.monotonic()) + len(data) / BYTES_PER_S
                await asyncio.sleep(self._free_at - time.monotonic())
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        if tasks := asyncio.all_tasks(self._loop) - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._loop.stop()


@contextmanager
def link_to(registry: str) -> Iterator[str]:
    """The address at which a registry is reached over the slow link."""
    host, _, port = registry.partition(":")
    link = _Link(host, int(port))
    try:
        yield link.address
    finally:
        link.close()


def first_result(reference: str, engine: OwnEngine) -> dict[str, float]:
    """Pull an image on an engine that has nothing, and import torch in a container of it."""
    started = time.perf_counter()
    engine.cli("pull", "--quiet", reference)
    pulled = time.perf_counter()
    engine.cli("run", "--rm", "--network=host", reference, "python", "-c", "import torch")
    done = time.perf_counter()
    return {"pull_s": round(pulled - started, 1), "import_s": round(done - pulled, 1), "s": round(done - started, 1)}


def measure(bench: Bench) -> dict[str, Any]:
    """Each way to lay the same packages out, on each release that can pull it."""
    plan = bench.plan(Image(pip=[*APPLICATIONS["transformers-torch"]]))
    names: dict[str, str] = {}
    for name in ("ordered layers (skyward)", "one layer of packages (multi-stage)"):
        tag, _ = bench.compiled(plan.image) if name.endswith("(skyward)") else bench.by_hand("multi-stage", plan)
        bench.push(tag, "pull")
        names[name] = f"pull:{tag.rpartition(':')[2]}"
    found: dict[str, Any] = {"link_mbit_s": BYTES_PER_S * 8 // 10**6, "platform": PLATFORM}
    found["engine under test"] = {name: pulled(bench, image, present_release()) for name, image in names.items()}
    with newer_release() as release:
        names["ordered layers, zstd (skyward build --push --zstd)"] = repacked(bench, names[next(iter(names))], release)
        found["Docker 26"] = {name: pulled(bench, image, release) for name, image in names.items()}
    return {**found, "soci": SNAPSHOTTER, "stargz": SNAPSHOTTER}


def repacked(bench: Bench, image: str, release: Release) -> str:
    """The same image with its layers compressed by zstd, by an engine that can; its name in the registry."""
    with release.engine() as engine, patch.dict("os.environ", engine.env):
        engine.cli("pull", "--quiet", f"{bench.registry}/{image}")
        target = f"{bench.registry}/zstd:{image.rpartition(':')[2]}"
        push_zstd(f"{bench.registry}/{image}", target, report=lambda _: None)
    return target.partition("/")[2]


def pulled(bench: Bench, image: str, release: Release) -> dict[str, float]:
    """Size of an image in the registry, and the times of its first result on an engine of a release."""
    repository, _, tag = image.partition(":")
    where = f"http://{bench.registry}/v2/{repository}/manifests/{tag}"
    layers = requests.get(where, headers={"Accept": f"{_OCI}, {_DOCKER}"}, timeout=10).json()["layers"]
    with release.engine() as engine, link_to(bench.registry) as address:
        engine.cli("rmi", engine.env["SKYWARD_BASE"])  # else the base's layers are there
        times = first_result(f"{address}/{image}", engine)
    return {"bytes": sum(layer["size"] for layer in layers), "layers": len(layers), **times}


def main() -> int:
    with opened() as bench:
        text = json.dumps(measure(bench), indent=2)
    (ROOT / "benchmarks/results/pull.json").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
