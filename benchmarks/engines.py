"""The same program on every engine that is up, and programs of Dask and Ray under their plugins beside those by hand.

Prints JSON, and writes it to benchmarks/results/engines.json; engines that are not up are in it with the reason.

make stand; make slurm; make kube       # for SSH, Slurm and Kubernetes, if wanted
python benchmarks/engines.py

On an engine: seconds from `with` to ready with the image there, 10,000 calls that do nothing, and 64 MB there and back.
Of Dask and Ray: the same with their own client on two nodes of this machine that are plain processes, under the plugin
and by hand, in turn; a ratio is the median of those of two runs next to each other. By hand means what their
documentation shows: for Dask `dask scheduler` and `dask worker`, with the same TLS and without; for Ray `ray.init()`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import skyward as sky
from scripts.kube.place import here
from skyward.delivery.deliver import ImageTarget, deliver
from skyward.engine import find_engine
from skyward.nodes.claimed import new_certificate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "engines.json"
CALLS = 10_000
BYTES = 64_000_000
TURNS = 5
LIMIT = 1.05  # of the time by hand
Program = Callable[[int], dict[str, float]]  # from a number of calls, seconds by what was done


@sky.compute
def nothing(number: int) -> int:
    return number


@sky.compute
def echo(data: bytes) -> bytes:
    return data


def same(value: Any) -> Any:
    return value


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# engines -------------------------------------------------------------------------------------------------------------


def engines() -> dict[str, Any]:
    """Each engine's provider, or why there is none."""
    ssh, slurm = ROOT / ".stand" / "hosts.json", ROOT / ".slurm" / "cluster.json"
    found: dict[str, Any] = {"docker": sky.Docker()}
    if ssh.exists():
        facts = json.loads(ssh.read_text())
        found["ssh"] = sky.SSH(*facts.pop("hosts")[:2], **facts)
    else:
        found["ssh"] = "no stand is up: `make stand`"
    if slurm.exists():
        facts = json.loads(slurm.read_text())
        found["slurm"] = sky.Slurm(facts.pop("login"), time="10", **facts)
    else:
        found["slurm"] = "no cluster is up: `make slurm`"
    kube = here()
    if (
        kube.kubeconfig.exists()
    ):  # its machines know this machine's registry by another name than the engine that pushes
        cluster = sky.ComputePool(display="quiet")._settings.cluster
        near, far = f"http://{os.environ['SKYWARD_REGISTRY']}/bench", f"http://{kube.state['registry']}/bench"
        deliver(sky.Image(), cluster, ImageTarget(engine=find_engine(), registry=near), print)
        found["kubernetes"] = sky.Kubernetes(kubeconfig=kube.kubeconfig, registry=far)
    else:
        found["kubernetes"] = "no cluster is up: `make kube`"
    return found


def on_engine(provider: Any, repeats: int) -> dict[str, float]:
    """Medians of several pools of two nodes; the first of them, which may bring the image, does not count."""
    times: dict[str, list[float]] = {"ready_s": [], "10000_calls_s": [], "64_mb_echo_s": []}
    data = os.urandom(BYTES)
    for number in range(repeats + 1):
        pool = sky.ComputePool(provider, nodes=2, display="quiet")
        ready_s = seconds(pool.open)
        with ExitStack() as end:
            end.callback(pool.close)
            nothing(0) @ pool
            calls = [nothing(each) for each in range(CALLS)]
            found = {
                "ready_s": ready_s,
                "10000_calls_s": seconds(lambda: sky.gather(*calls) >> pool),  # noqa: B023 - called here
                "64_mb_echo_s": seconds(lambda: echo(data) >> pool),  # noqa: B023
            }
        for what, value in found.items():
            if number:
                times[what].append(value)
    return {what: round(statistics.median(values), 3) for what, values in times.items()}


# Dask and Ray --------------------------------------------------------------------------------------------------------


def dask_program(client: Any, count: int) -> dict[str, float]:
    data = os.urandom(BYTES)
    client.gather(client.map(same, range(100), pure=False))

    def calls() -> None:
        assert client.gather(client.map(same, range(count), pure=False)) == list(range(count))

    return {
        f"{count}_calls_s": seconds(calls),
        "64_mb_echo_s": seconds(lambda: client.submit(same, data, pure=False).result()),
    }


@contextmanager
def dask_under_plugin() -> Iterator[Program]:
    with sky.ComputePool(sky.Local(), nodes=2, plugins=[sky.plugins.dask()], display="quiet") as pool:
        yield partial(dask_program, pool.dask)


@contextmanager
def dask_by_hand(*, encrypted: bool) -> Iterator[Program]:
    """A scheduler and two workers with a thread each, as their commands start them."""
    from distributed import Client, Security

    with tempfile.TemporaryDirectory() as name, ExitStack() as ends:
        folder, words, security = Path(name), [], Security()
        if encrypted:
            certificate, key = new_certificate("benchmark", user="The benchmark", extra="dask")
            (folder / "cert.pem").write_text(certificate)
            (folder / "key.pem").write_text(key)
            files = {"ca-file": "cert.pem", "cert": "cert.pem", "key": "key.pem"}
            words = [word for what, file in files.items() for word in (f"--tls-{what}", str(folder / file))]
            security = Security(
                require_encryption=True, tls_ca_file=certificate, tls_client_cert=certificate, tls_client_key=key
            )
        scheduler, about = [sys.executable, "-m", "distributed.cli.dask_scheduler"], folder / "scheduler.json"
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny"]
        place = ["--scheduler-file", str(about)]
        protocol = "tls" if encrypted else "tcp"
        local = ["--host", f"{protocol}://127.0.0.1"]
        commands = [[*scheduler, *place, *local, "--port", "0", "--dashboard-address", "127.0.0.1:0", *words]]
        commands += [[*worker, *place, *local, "--local-directory", name, *words]] * 2
        for command in commands:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            ends.callback(process.wait)
            ends.callback(process.terminate)
            while command is commands[0] and not about.exists():
                time.sleep(0.01)
        client = ends.enter_context(Client(scheduler_file=str(about), security=security))
        client.wait_for_workers(2)
        yield partial(dask_program, client)


def ray_program(count: int) -> dict[str, float]:
    import ray

    remote, data = ray.remote(same), os.urandom(BYTES)
    ray.get([remote.remote(number) for number in range(20)])

    def calls() -> None:
        assert ray.get([remote.remote(number) for number in range(count)]) == list(range(count))

    return {
        f"{count}_calls_s": seconds(calls),
        "64_mb_echo_s": seconds(lambda: ray.get(remote.remote(data))),
    }


@contextmanager
def ray_under_plugin() -> Iterator[Program]:
    with sky.ComputePool(sky.Local(), nodes=2, plugins=[sky.plugins.ray()], display="quiet"):
        yield ray_program


@contextmanager
def ray_by_hand() -> Iterator[Program]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield ray_program
    finally:
        ray.shutdown()
        os.environ.pop("RAY_AUTH_MODE", None)  # which ray.init() leaves, and the plugin refuses


Way = Callable[[], AbstractContextManager[Program]]
FRAMEWORKS: dict[str, dict[str, Way]] = {
    "dask": {
        "plugin": dask_under_plugin,
        "by hand": partial(dask_by_hand, encrypted=True),
        "by hand, in plain text": partial(dask_by_hand, encrypted=False),
    },
    "ray": {"plugin": ray_under_plugin, "by hand": ray_by_hand},
}


def compared(ways: dict[str, Way], count: int, repeats: int, *, at_once: bool) -> dict[str, Any]:
    """Medians of each way, and of the ratios of the plugin's times to those by hand next to them.

    Args:
        ways: how a program gets its cluster.
        count: calls of a program.
        repeats: how often each cluster is made.
        at_once: whether all clusters are open while the program runs on each in turn, which other work on the machine
            then disturbs alike; else one is open at a time, and the program runs on it once.
    """
    ready: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(repeats):
        for names in [order] if at_once else [[name] for name in order]:
            with ExitStack() as ends:
                programs = {}
                for name in names:
                    began = time.perf_counter()
                    programs[name] = ends.enter_context(ways[name]())
                    ready[name].append(time.perf_counter() - began)
                for turn in range(TURNS if at_once else 1):
                    for name in names if turn % 2 else reversed(names):
                        found[name].append(programs[name](count))
        order = order[1:] + order[:1]
    figures: dict[str, Any] = {
        name: {"ready_s": _median(ready[name])} | {what: _median(run[what] for run in runs) for what in runs[0]}
        for name, runs in found.items()
    }
    pairs = list(zip(found["plugin"], found["by hand"], strict=True))
    figures["plugin_by_hand"] = {
        what: _median(ours[what] / theirs[what] for ours, theirs in pairs) for what in pairs[0][0]
    }
    return {"runs": len(pairs), **figures}


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--calls", type=int, default=CALLS, help="of Dask and Ray (default: %(default)s)")
    parser.add_argument("--only", action="append", help="an engine or framework; repeat it for several")
    options = parser.parse_args()
    wanted = set(options.only or [])
    figures: dict[str, Any] = json.loads(RESULTS.read_text()) if wanted and RESULTS.exists() else {}
    figures |= {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "limit": LIMIT}
    for name, provider in engines().items():
        if not wanted or name in wanted:
            figures[name] = provider if isinstance(provider, str) else on_engine(provider, options.repeats)
    for name, ways in FRAMEWORKS.items():
        if not wanted or name in wanted:
            missing = find_spec("distributed" if name == "dask" else name) is None
            figures[name] = (
                f"{name} is not installed"
                if missing
                else compared(ways, options.calls, options.repeats, at_once=name == "dask")
            )
        RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
