"""Functions of the tests of ranks that fail in a framework's collective; nodes have no pytest to import."""

from __future__ import annotations

import os
import time

import skyward as sky
from tests.e2e.failing_functions import fall, rank


def torch_sum(value: float) -> float:
    """The sum of the ranks' values."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([value])
    dist.all_reduce(total)
    return float(total.item())


def jax_sum(value: float) -> float:
    """The same, as one compiled step over the devices of all ranks."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(jax.devices(), ("ranks",))
    own = np.array([value], np.float32)
    values = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("ranks")), own)
    step = jax.jit(lambda parts: parts.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    return float(step(values))


SUMS = {"torch": torch_sum, "jax": jax_sum}


@sky.compute
def total(framework: str) -> tuple[float, int]:
    """A collective that works, and the process it ran in."""
    return SUMS[framework](rank() + 1.0), os.getpid()


@sky.compute
def fails_in(framework: str, victim: int, how: str) -> str:
    """One collective that works; then one rank falls, or returns, and the others wait for it in the next."""
    SUMS[framework](1.0)
    if rank() == victim:
        time.sleep(0.5)
        fall(how)
        return "early"
    SUMS[framework](1.0)  # nobody answers
    return "late"


@sky.compute
def works_on(seconds: float) -> float:
    """Rank 0 returns at once; the other computes for long, without a line of Python in between."""
    import torch

    began = time.monotonic()
    if rank() != 0:
        matrix = torch.rand(600, 600)
        while time.monotonic() - began < seconds:
            for _ in range(20):
                matrix = torch.nn.functional.normalize(matrix @ matrix)
    return time.monotonic() - began
