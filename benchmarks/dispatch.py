"""What a call costs: round trips, throughput, bandwidth, start-up, import; as JSON, next to a raw socket of this run.

make bench                                   # containers and plain processes
python benchmarks/dispatch.py --provider local
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import skyward as sky

MB = 1_000_000
PAYLOAD = 256 * MB


@sky.compute
def nothing() -> None:
    return None


@sky.compute
def size(array: Any) -> int:
    return int(array.nbytes)


@sky.compute
def give(n: int, kept: dict[int, Any] = {}) -> Any:  # noqa: B006 - the worker keeps it between calls
    import numpy

    if n not in kept:
        kept[n] = numpy.ones(n, dtype=numpy.uint8)
    return kept[n]


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def raw_socket() -> dict[str, float]:
    """A pair of processes that bounce 30 bytes, and 256 MB into fresh memory, over a unix socket."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        for _ in range(4000):
            theirs.sendall(theirs.recv(64))
        for _ in range(5):
            target, done = memoryview(bytearray(PAYLOAD)), 0
            while done < PAYLOAD:
                done += theirs.recv_into(target[done:])
            theirs.sendall(b"k")
        os._exit(0)
    theirs.close()

    def bounce() -> None:
        ours.sendall(b"x" * 30)
        ours.recv(64)

    trips = sorted(seconds(bounce) for _ in range(4000))
    block = bytes(PAYLOAD)

    def carry() -> None:
        ours.sendall(block)
        ours.recv(1)

    bulk = [seconds(carry) for _ in range(5)]
    os.waitpid(child, 0)
    return {
        "round_trip_p50_us": round(trips[2000] * 1e6, 1),
        "round_trip_p99_us": round(trips[3960] * 1e6, 1),
        "gb_per_s": round(PAYLOAD / statistics.median(bulk) / 1e9, 2),
    }


def ready_times(provider: Any, image: sky.Image, repeats: int) -> dict[str, float]:
    """Seconds from `with` to ready, by number of nodes; the median of several starts."""
    result = {}
    for nodes in (1, 2, 4):
        times = []
        for _ in range(repeats):
            pool = sky.ComputePool(provider, nodes=nodes, image=image, display="quiet")
            started = time.perf_counter()
            with pool:
                times.append(time.perf_counter() - started)
        result[f"{nodes}_nodes"] = round(statistics.median(times), 2)
    return result


def dispatch(provider: Any, image: sky.Image, repeats: int) -> dict[str, Any]:
    array = np.ones(PAYLOAD, dtype=np.uint8)
    with sky.ComputePool(provider, nodes=2, image=image, display="quiet") as pool:
        for _ in range(300):
            nothing() >> pool
        trips = sorted(seconds(lambda: nothing() >> pool) for _ in range(3000))
        calls = [nothing() for _ in range(10_000)]
        gathers = [seconds(lambda: sky.gather(*calls) >> pool) for _ in range(repeats)]
        up = [seconds(lambda: size(array) >> pool) for _ in range(repeats)]
        give(PAYLOAD) @ pool
        down = [seconds(lambda: give(PAYLOAD) >> pool) for _ in range(repeats)]
    return {
        "round_trip_p50_us": round(trips[1500] * 1e6, 1),
        "round_trip_p99_us": round(trips[2970] * 1e6, 1),
        "tasks_per_s": round(10_000 / statistics.median(gathers)),
        "argument_gb_per_s": round(PAYLOAD / statistics.median(up) / 1e9, 2),
        "result_gb_per_s": round(PAYLOAD / statistics.median(down) / 1e9, 2),
        "ready_s": ready_times(provider, image, repeats),
    }


def import_ms(repeats: int = 11) -> dict[str, float]:
    """`import skyward` over a bare interpreter, in turn."""

    def run(code: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    pairs = [(run("pass"), run("import skyward")) for _ in range(repeats)]
    bare = statistics.median(p[0] for p in pairs) * 1e3
    return {"bare_ms": round(bare, 1), "over_bare_ms": round(statistics.median(b - a for a, b in pairs) * 1e3, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["docker", "local", "both"], default="both")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "raw_socket": raw_socket(),
        "import": import_ms(),
    }
    if options.provider in ("local", "both"):
        figures["local"] = dispatch(sky.Local(), sky.Image(), options.repeats)
    if options.provider in ("docker", "both"):
        figures["docker"] = dispatch(sky.Docker(), sky.Image(pip=["numpy"]), options.repeats)
    figures["raw_socket_after"] = raw_socket()
    json.dump(figures, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    assert threading.active_count() == 1  # fork in raw_socket wants a process of one thread
    main()
