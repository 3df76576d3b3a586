"""How long a host that has nothing takes from the pull of an image to the end of `import torch`, over 100 Mbit/s.

python -m benchmarks.pull                   # prints, and writes benchmarks/results/pull.json

The host is a second engine on this machine, of the release under test, which starts empty for each image. It pulls from
a registry on the loopback interface through a proxy that passes 12.5 MB/s in all, however many layers come at once. All
images hold the same locked packages.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.images import APPLICATIONS, PLATFORM, ROOT, Bench, opened
from skyward.model.image import Image
from tests.e2e.engines import OwnEngine, present_release

BYTES_PER_S = 12_500_000
_PIECE = 1 << 16
NOT_MEASURED = {
    "zstd": "not possible: engines before 23 cannot unpack it; --zstd makes such images for newer ones",
    "soci": "not possible: it takes a snapshotter of containerd's, and this engine has a graph driver",
    "stargz": "not possible: it takes a snapshotter of containerd's, and this engine has a graph driver",
}


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
        await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer), return_exceptions=True)

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
        self._loop.call_soon_threadsafe(self._loop.stop)


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
    """Each way to lay the same packages out."""
    plan = bench.plan(Image(pip=[*APPLICATIONS["transformers-torch"]]))
    found: dict[str, Any] = {}
    for name in ("ordered layers (skyward)", "one layer of packages (multi-stage)"):
        is_ours = name.endswith("(skyward)")
        tag, _ = bench.compiled(plan.image) if is_ours else bench.by_hand("multi-stage", plan)
        pushed, _ = bench.push(tag, "pull")
        layers = len(bench.client.images.get(tag).attrs["RootFS"]["Layers"])
        with present_release().engine() as engine, link_to(bench.registry) as address:
            engine.cli("rmi", engine.env["SKYWARD_BASE"])  # else the base's layers are there
            found[name] = {
                "bytes": pushed.size_bytes,
                "layers": layers,
                **first_result(f"{address}/pull:{tag.rpartition(':')[2]}", engine),
            }
    return {"link_mbit_s": BYTES_PER_S * 8 // 10**6, "platform": PLATFORM, **found, **NOT_MEASURED}


def main() -> int:
    with opened() as bench:
        text = json.dumps(measure(bench), indent=2)
    (ROOT / "benchmarks/results/pull.json").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
