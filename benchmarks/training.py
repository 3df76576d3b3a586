"""A training step with DistributedDataParallel in a pool, over the same step in plain processes of torchrun.

python benchmarks/training.py                              # two containers, two processes
python benchmarks/training.py --provider local --ranks 1   # on a machine with one GPU

Both train the same model with the same code, in turn: a block of steps here, a block there, round after round, so that
what else the machine does falls on both. A ratio is the median of the rounds' ratios. Ends with status 1 if the pool's
steps take more than 1.02 of torchrun's (1.01 on a GPU).
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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import skyward as sky

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CEILINGS = {"cpu": 1.02, "cuda": 1.01}
BATCH, WIDTH = 64, 512
Block = Callable[[int], dict[str, Any]]


def steps(count: int, kept: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006 - the model lives on between blocks
    """Make so many steps; milliseconds per step, and where."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not kept:
        torch.manual_seed(0)
        layers = [nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
        kept["model"] = DDP(nn.Sequential(*layers).to(device))
        kept["optimizer"] = torch.optim.SGD(kept["model"].parameters(), lr=0.01)
        kept["x"] = torch.randn(BATCH, 64, device=device)
        kept["y"] = torch.randint(0, 10, (BATCH,), device=device)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        loss = nn.functional.cross_entropy(kept["model"](kept["x"]), kept["y"])
        kept["optimizer"].zero_grad()
        loss.backward()
        kept["optimizer"].step()
    loss.item()  # waits for a GPU
    taken = time.perf_counter() - started
    return {"ms": 1000 * taken / count, "device": device.type, "torch": torch.__version__, "loss": loss.item()}


@contextmanager
def in_a_pool(provider: Any, ranks: int) -> Iterator[Block]:
    """Blocks of steps on the ranks of a pool; what rank 0 says of them."""
    block = sky.compute(sky.integrations.torch(steps))
    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(provider, nodes=ranks, image=image, plugins=[sky.plugins.torch()]) as pool:
        yield lambda count: (block(count) @ pool)[0]


@contextmanager
def under_torchrun(ranks: int) -> Iterator[Block]:
    """The same in processes of torchrun, which wait for their orders in between."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "orders")
        listener.bind(path)
        listener.listen()
        threads = max(1, len(os.sched_getaffinity(0)) // ranks)
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(threads)}
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__, "--orders", path]
        process = subprocess.Popen([sys.executable, *words], env=env)
        try:
            listener.settimeout(120)
            connection, _ = listener.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as lines:

                def block(count: int) -> dict[str, Any]:
                    lines.write(f"{count}\n")
                    lines.flush()
                    answer: dict[str, Any] = json.loads(lines.readline())
                    return answer

                yield block
                lines.write("0\n")
                lines.flush()
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()


def obey(path: str) -> None:
    """A process of torchrun: make as many steps as rank 0 is told, until it is told none."""
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    leading = dist.get_rank() == 0
    with socket.socket(socket.AF_UNIX) as connection:
        if leading:
            connection.connect(path)
        with connection.makefile("rw", encoding="utf-8") as lines:
            while True:
                order = [int(lines.readline()) if leading else 0]
                dist.broadcast_object_list(order, src=0)
                if not order[0]:
                    break
                answer = steps(order[0])
                if leading:
                    lines.write(json.dumps(answer) + "\n")
                    lines.flush()
    dist.destroy_process_group()


def compared(here: Block, there: Block, rounds: int, count: int) -> dict[str, Any]:
    """Blocks in turn, whoever comes first in a round going second in the next."""
    for block in (here, there):
        block(count)  # the first steps are slower
    pool: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    for number in range(rounds):
        for mine in (True, False) if number % 2 else (False, True):
            (pool if mine else plain).append((here if mine else there)(count))
    ratios = [a["ms"] / b["ms"] for a, b in zip(pool, plain, strict=True)]
    assert pool[-1]["loss"] == plain[-1]["loss"], "both did not compute the same"
    device = pool[-1]["device"]
    return {
        "pool_ms": round(statistics.median(a["ms"] for a in pool), 4),
        "torchrun_ms": round(statistics.median(b["ms"] for b in plain), 4),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "ceiling": CEILINGS[device],
        "device": device,
        "torch": pool[-1]["torch"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["docker", "local"], default="docker")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=200, help="of a block")
    parser.add_argument("--orders", help=argparse.SUPPRESS)  # how torchrun starts this file
    given = parser.parse_args()
    if given.orders:
        obey(given.orders)
        return 0
    provider = sky.Docker() if given.provider == "docker" else sky.Local()
    with in_a_pool(provider, given.ranks) as here, under_torchrun(given.ranks) as there:
        result = compared(here, there, given.rounds, given.steps)
    facts = {"provider": given.provider, "ranks": given.ranks, "steps": given.steps, "cpus": os.cpu_count()}
    document = {**result, **facts, "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(document, indent=2))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"training-{result['device']}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if result["ratio"] <= result["ceiling"] else 1


if __name__ == "__main__":
    sys.exit(main())
