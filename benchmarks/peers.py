"""Dispatch of skyward beside that of the standard library, loky, Ray and Dask on one machine, two workers each.

make bench-peers                                   # an environment of its own with pip, removed afterwards
python benchmarks/peers.py --rounds 1 --only skyward,multiprocessing

A round starts each of them once, as a program of its own, one after the other and in another order each time: a machine
is seldom equally busy for long, so that ratios say more than figures. Those are medians over the rounds; 100,000 calls,
and skyward's answers to what Ray publishes of its limits, are measured in the first round alone. Writes
benchmarks/results/peers.json, and by `benchmarks/peers_page.py` the table and the plot of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
WORKERS = 2
TRIPS, CALLS, MANY = 1000, 10_000, 100_000
ECHO_BYTES = 64 * 2**20
_PATIENCE = 1000  # calls per second, below which 100,000 of them are not waited for


def nothing(number: int) -> int:
    return number


def echo(array: Any) -> Any:
    return array


def count(*arguments: Any) -> int:
    return len(arguments)


def arrays(number: int) -> list[Any]:
    import numpy

    return [numpy.zeros(1) for _ in range(number)]


class Peer(NamedTuple):
    """One way to run functions on two workers, open.

    Attributes:
        call: calls a function on one of them, and returns what it returns.
        each: calls `nothing` so many times, each call by itself, and returns all results.
        map: the same by the way that is meant for it, None where there is none other.
    """

    call: Callable[..., Any]
    each: Callable[[int], list[int]]
    map: Callable[[int], list[int]] | None


@contextmanager
def skyward() -> Iterator[Peer]:
    import skyward as sky

    work = sky.compute(nothing)
    with sky.ComputePool(sky.Local(), nodes=WORKERS, display="quiet") as pool:
        yield Peer(
            lambda fn, *args: sky.compute(fn)(*args) >> pool if fn is not nothing else work(*args) >> pool,
            lambda n: list(sky.gather(*(work(number) for number in range(n))) >> pool),
            lambda n: pool.map(work, range(n)),
        )


@contextmanager
def multiprocessing() -> Iterator[Peer]:
    from multiprocessing import Pool

    with Pool(WORKERS) as pool:
        yield Peer(
            lambda fn, *args: pool.apply(fn, args),
            lambda n: [each.get() for each in [pool.apply_async(nothing, (number,)) for number in range(n)]],
            lambda n: pool.map(nothing, range(n)),
        )


def _executor(executor: Any) -> Peer:
    return Peer(
        lambda fn, *args: executor.submit(fn, *args).result(),
        lambda n: [each.result() for each in [executor.submit(nothing, number) for number in range(n)]],
        lambda n: list(executor.map(nothing, range(n), chunksize=n // (4 * WORKERS))),
    )


@contextmanager
def concurrent_futures() -> Iterator[Peer]:
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(WORKERS) as executor:
        yield _executor(executor)


@contextmanager
def loky() -> Iterator[Peer]:
    executor = import_module("loky").get_reusable_executor(max_workers=WORKERS)
    yield _executor(executor)
    executor.shutdown()


@contextmanager
def ray() -> Iterator[Peer]:
    ray = import_module("ray")
    folder = os.environ["PEERS_FOLDER"]
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=folder)
    remote = {fn: ray.remote(fn) for fn in (nothing, echo)}
    yield Peer(
        lambda fn, *args: ray.get(remote[fn].remote(*args)),
        lambda n: list(ray.get([remote[nothing].remote(number) for number in range(n)])),
        None,
    )
    ray.shutdown()


@contextmanager
def dask() -> Iterator[Peer]:
    distributed = import_module("distributed")
    folder = os.environ["PEERS_FOLDER"]
    with (
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, local_directory=folder
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield Peer(
            lambda fn, *args: client.submit(fn, *args, pure=False).result(),
            lambda n: list(client.gather(client.map(nothing, range(n), pure=False))),
            None,
        )


PEERS: dict[str, Callable[[], Any]] = {
    "skyward": skyward,
    "multiprocessing": multiprocessing,
    "concurrent.futures": concurrent_futures,
    "loky": loky,
    "ray": ray,
    "dask": dask,
}


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def memory_mb() -> float:
    """What the processes that were started here hold, shared pages by halves and so on, in MB."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(_pss_kb(pid) for pid in ours - {os.getpid()}) / 1000


def _pss_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def adopt_orphans() -> None:
    """Let processes whose parent ends be this one's children, so that `memory_mb` finds them."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def measure(name: str, began: float, *, many: bool) -> dict[str, float]:
    """All figures of one of them; `began` is when its program was started, on the machine's monotonic clock."""
    adopt_orphans()
    figures: dict[str, float] = {}
    with PEERS[name]() as peer:
        assert peer.call(nothing, 1) == 1
        figures["first_result_s"] = time.monotonic() - began
        import numpy

        for number in range(200):
            peer.call(nothing, number)
        time.sleep(0.5)
        figures["idle_mb"] = memory_mb()
        trips = sorted(timed(lambda: peer.call(nothing, 1)) for _ in range(TRIPS))
        figures["p50_us"], figures["p99_us"] = (1e6 * trips[int(TRIPS * part)] for part in (0.5, 0.99))
        array = numpy.ones(ECHO_BYTES, dtype=numpy.uint8)
        assert peer.call(echo, array).nbytes == ECHO_BYTES
        figures["echo_ms"] = 1e3 * statistics.median(timed(lambda: peer.call(echo, array)) for _ in range(7))
        figures["calls_per_s"] = CALLS / timed(lambda: peer.each(CALLS))
        if peer.map is not None:
            map_of = peer.map
            figures["map_per_s"] = MANY / min(timed(lambda: map_of(MANY)) for _ in range(3))
        if many and figures["calls_per_s"] > _PATIENCE:
            figures["calls_per_s_of_100000"] = MANY / timed(lambda: peer.each(MANY))
    return figures


def limits() -> dict[str, float]:
    """Seconds for what Ray's release tests do on one node, as skyward does it."""
    import numpy

    import skyward as sky

    with sky.ComputePool(sky.Local(), nodes=WORKERS, display="quiet") as pool:
        work = sky.compute(nothing)
        work(1) >> pool
        few = [numpy.zeros(1) for _ in range(10_000)]
        found = {
            "10000_arguments_s": timed(lambda: sky.compute(count)(*few) >> pool),
            "3000_results_s": timed(lambda: sky.compute(arrays)(3000) >> pool),
        }
        futures = [sky.compute(arrays)(1) > pool for _ in range(10_000)]
        found["10000_results_got_s"] = timed(lambda: [future.result() for future in futures])
        found["1000000_calls_s"] = timed(lambda: sky.gather(*(work(number) for number in range(1_000_000))) >> pool)
        found["1000000_items_mapped_s"] = timed(lambda: pool.map(work, range(1_000_000)))
    return {name: round(seconds, 3) for name, seconds in found.items()}


def one(name: str, folder: str, *words: str) -> Any:
    """What this file prints when it is run for one of them."""
    variables = os.environ | {
        "PEERS_FOLDER": folder,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "DASK_TEMPORARY_DIRECTORY": folder,
    }
    command = [sys.executable, __file__, "--one", name, "--began", str(time.monotonic()), *words]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ended with status {done.returncode}; its errors stand above.")
    return json.loads(done.stdout.splitlines()[-1])


def run(names: list[str], rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    loads = []
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                loads.append(round(os.getloadavg()[0], 1))
                found[name].append(one(name, folder, *(["--many"] if number == 0 else [])))
                print(name, {key: round(value, 3) for key, value in found[name][-1].items()}, file=sys.stderr)
        published = one("limits", folder) if "skyward" in names else {}
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": loads,
        "rounds": rounds,
        "versions": {name: version(name) for name in ("skyward", "loky", "ray", "dask") if name in names},
        "figures": {
            name: {
                key: round(statistics.median(each[key] for each in measured if key in each), 4) for key in measured[0]
            }
            for name, measured in found.items()
        },
        "limits": published,
    }


def in_its_own_environment(words: list[str]) -> int:
    """Install skyward with its `bench` extra somewhere temporary, and run this file there."""
    with tempfile.TemporaryDirectory(prefix="peers-environment-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "-e", f"{ROOT}[bench]"], check=True)
        return subprocess.run([python, __file__, "--here", *words], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PEERS), help="names of those to be measured, with commas")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--here", action="store_true", help="in this environment, which has all of them")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--many", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found = limits() if options.one == "limits" else measure(options.one, options.began, many=options.many)
        print(json.dumps(found))
        return 0
    if not options.here:
        return in_its_own_environment(sys.argv[1:])
    options.output.write_text(json.dumps(run(options.only.split(","), options.rounds), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
