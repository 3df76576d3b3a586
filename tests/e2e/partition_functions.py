"""What the tests of a network that fails run on nodes; its module imports nothing that the image lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import skyward as sky
from tests.e2e.failing_frameworks import jax_sum
from tests.e2e.torch_functions import model_of

ENOUGH_S = 90.0  # after which a test has failed anyway


def ddp_step() -> Callable[[], float]:
    """A step of training with DDP, which gives its loss."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model_of(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.ones(8, 64, dtype=torch.float64), torch.arange(8)

    def step() -> float:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def jax_step() -> Callable[[], float]:
    """A computation over the devices of all ranks."""
    return partial(jax_sum, 1.0)


STEPS = {"torch": ddp_step, "jax": jax_step}


@sky.compute
def goes_on(framework: str) -> Iterator[float]:
    """What the first step gives, after which there is one after the other until the call is ended."""
    step = STEPS[framework]()
    yield step()
    began = time.monotonic()
    while time.monotonic() - began < ENOUGH_S:
        step()
