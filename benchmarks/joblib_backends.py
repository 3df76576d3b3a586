"""joblib's backends on the same cores: skyward's, loky's, Dask's and Ray's, in turn, round after round.

python benchmarks/joblib_backends.py                    # makes an environment of its own with pip, and removes it
python benchmarks/joblib_backends.py --rounds 3 --grid-rounds 1

Three kinds of work: 10,000 calls that do nothing, 10,000 that compute for 0.2 ms, and a grid search of scikit-learn
with 240 fits. A figure is the median over the rounds; a ratio is the median of the ratios within a round, since a
machine is seldom equally busy for long. Ends with status 1 unless skyward has 0.9 of loky's throughput in all of them
and is ahead of Dask and Ray.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "joblib.json"
CALLS = 10_000
SHORT_S = 0.0002
FLOORS = {"loky": 0.9, "dask": 1.0, "ray": 1.0}
Backends = Mapping[str, Callable[[], AbstractContextManager[Any]]]


def nothing(number: int) -> int:
    return number


def short(number: int) -> int:
    end = time.perf_counter() + SHORT_S
    while time.perf_counter() < end:
        pass
    return number


def calls(fn: Callable[[int], int]) -> Callable[[], None]:
    from joblib import Parallel, delayed

    def run() -> None:
        assert Parallel(n_jobs=-1)(delayed(fn)(number) for number in range(CALLS)) == list(range(CALLS))

    return run


def grid() -> Callable[[], None]:
    """240 fits of a support vector machine on handwritten digits."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_digits(return_X_y=True)
    parameters = {"C": [0.1, 0.3, 1, 3, 10, 30, 100, 300], "gamma": [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01]}
    search = GridSearchCV(SVC(), parameters, cv=5, n_jobs=-1, refit=False)

    def run() -> None:
        search.fit(x, y)
        assert search.best_score_ > 0.97

    return run


@contextmanager
def all_backends(cores: int, folder: str) -> Iterator[Backends]:
    """Each backend with as many processes as there are cores, all started and idle."""
    import joblib

    import skyward as sky
    from skyward.integrations import joblib_backend

    dask = import_module("dask.distributed")
    ray, ray_joblib = import_module("ray"), import_module("ray.util.joblib")
    with ExitStack() as ends:
        worker = sky.Worker(concurrency=cores, executor="process")
        plugins = [sky.plugins.sklearn()]
        pool = ends.enter_context(sky.ComputePool(sky.Local(), worker=worker, plugins=plugins, display="quiet"))
        cluster = dask.LocalCluster(
            n_workers=cores, threads_per_worker=1, dashboard_address=None, local_directory=folder
        )
        ends.enter_context(cluster)
        ends.enter_context(dask.Client(cluster))
        ray.init(
            num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=f"{folder}/r"
        )
        ends.callback(ray.shutdown)
        ray_joblib.register_ray()
        yield {
            "skyward": lambda: joblib_backend(pool),
            "loky": lambda: joblib.parallel_config("loky"),
            "dask": lambda: joblib.parallel_config("dask"),
            "ray": lambda: joblib.parallel_config("ray"),
        }


def rounds_of(work: Callable[[], None], backends: Backends, rounds: int) -> dict[str, list[float]]:
    """Seconds of each backend by round, after one that does not count; the order changes from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in backends}
    order = list(backends)
    for number in range(rounds + 1):
        for name in order:
            with backends[name]():
                began = time.perf_counter()
                work()
                took_s = time.perf_counter() - began
            if number:
                seconds[name].append(took_s)
        order = order[1:] + order[:1]
    return seconds


def summary(seconds: dict[str, list[float]], units: int) -> dict[str, Any]:
    ours = seconds["skyward"]
    return {
        "seconds": {name: [round(s, 4) for s in each] for name, each in seconds.items()},
        "per_second": {name: round(units / statistics.median(each), 1) for name, each in seconds.items()},
        "skyward_over": {
            name: round(statistics.median(theirs / our for theirs, our in zip(each, ours, strict=True)), 3)
            for name, each in seconds.items()
            if name != "skyward"
        },
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": cores,
        "versions": {name: version(name) for name in ("joblib", "scikit-learn", "dask", "ray")},
        "load_before": round(os.getloadavg()[0], 2),
    }
    with all_backends(cores, options.here) as backends:
        for name, work, rounds, units in (
            ("empty", calls(nothing), options.rounds, CALLS),
            ("0.2 ms", calls(short), options.rounds, CALLS),
            ("grid", grid(), options.grid_rounds, 240),
        ):
            figures[name] = summary(rounds_of(work, backends, rounds), units)
            print(name, figures[name]["per_second"], figures[name]["skyward_over"], file=sys.stderr, flush=True)
    figures["load_after"] = round(os.getloadavg()[0], 2)
    missed = [
        f"{name} over {other}"
        for name in ("empty", "0.2 ms", "grid")
        for other, floor in FLOORS.items()
        if figures[name]["skyward_over"][other] < floor
    ]
    figures["floors"] = {"wanted": FLOORS, "met": not missed, "missed": missed}
    return figures


def in_its_own_environment(arguments: list[str]) -> int:
    """Install skyward with its `bench` extra somewhere temporary, and run this file there."""
    with tempfile.TemporaryDirectory(prefix="joblib-backends-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "-e", f"{ROOT}[bench]"], check=True)
        variables = {
            **os.environ,
            "DASK_TEMPORARY_DIRECTORY": folder,
            "OMP_NUM_THREADS": "1",  # a process per core; ours alone would see to that by itself
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        return subprocess.run([python, __file__, "--here", folder, *arguments], env=variables, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="of the small calls")
    parser.add_argument("--grid-rounds", type=int, default=5, help="of the grid search")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--here", metavar="FOLDER", help="in this environment, which has dask and ray, with files there"
    )
    options = parser.parse_args()
    if not options.here:
        return in_its_own_environment(sys.argv[1:])
    figures = measure(options)
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures["floors"], indent=2))
    return 0 if figures["floors"]["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
