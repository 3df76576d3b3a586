"""Functions that the GPU checks run on nodes. Under torchrun this module prints the seconds of training steps."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from skyward._compute import compute
from skyward.integrations import torch as with_group
from skyward.model.instance import InstanceInfo

STEPS = 200


@compute
def place() -> tuple[int, list[str]]:
    """Return the number of GPUs that the pool reports, and the names of those that CUDA sees."""
    import torch

    info = InstanceInfo.current()
    assert info is not None
    count = torch.cuda.device_count()
    return info.accelerators, [torch.cuda.get_device_name(index) for index in range(count)]


@compute
def summed(device: str) -> tuple[str, float]:
    """Return the group's backend, and the sum over its ranks of a tensor on the device."""
    import torch
    import torch.distributed as dist

    value = torch.ones(1, device=device)
    dist.all_reduce(value)
    return str(dist.get_backend()), float(value.item())


@compute
def comes_only_as_rank_0(device: str) -> None:
    """Start a collective that the other ranks do not take part in."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1, device=device))


def steps(device: str, count: int = STEPS) -> float:
    """Return the seconds that training steps take; with DDP if there is a process group."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
    model = model.to(device)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(256, 1024, device=device)

    def make(number: int) -> None:
        for _ in range(number):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()  # waits for the device

    make(5)  # warm-up
    start = time.perf_counter()
    make(count)
    return time.perf_counter() - start


@compute
@with_group()
def trained(device: str, count: int = STEPS) -> float:
    """Return the seconds that `steps` take with DDP."""
    return steps(device, count)


@compute
def in_half_precision(device: str) -> str:
    """Return the dtype of a product under autocast, after computing a gradient."""
    import torch

    weight = torch.ones(64, 64, device=device, requires_grad=True)
    with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16):
        product = weight @ weight
    product.float().sum().backward()
    assert weight.grad is not None
    return str(product.dtype)


@compute
def compiled(device: str) -> float:
    """Return the result of a function compiled by torch."""
    import torch

    fn = torch.compile(lambda x: (x * 2).relu().sum())
    return float(fn(torch.ones(1000, device=device)))


@compute
def doubled(value: Any) -> Any:
    """Return twice a tensor, an array, or each value of a dictionary."""
    return {name: each * 2 for name, each in value.items()} if isinstance(value, dict) else value * 2


@compute
def module_on(module: Any, device: str) -> Any:
    """Return a module after moving it to the device."""
    return module.to(device)


@compute
def made(count: int, device: str) -> Any:
    """Return a tensor of `count` numbers."""
    import torch

    return torch.ones(count, device=device)


@compute
def nothing(*_: Any) -> None:
    """Do nothing."""


@compute
def computes(device: str) -> float:
    """Compute something small that fails on a broken device."""
    import torch

    return float((torch.ones(1000, device=device) * 2).sum())


@compute
def spin(seconds: float) -> None:
    """Hold memory while a kernel runs."""
    import torch

    held = torch.ones(2**27, device="cuda")  # 512 MB
    torch.cuda._sleep(int(seconds * 2e9))  # cycles of a clock of about 2 GHz
    torch.cuda.synchronize()
    del held


@compute
def die() -> None:
    """Kill this process with a signal while a kernel runs."""
    import torch

    torch.cuda._sleep(10**12)
    os.kill(os.getpid(), signal.SIGKILL)


@compute
def take_too_much() -> None:
    """Allocate more memory than any GPU has."""
    import torch

    held = [torch.ones(2**27, device="cuda")]
    held.append(torch.empty(2**45, device="cuda"))


@compute
def assert_in_a_kernel() -> None:
    """Use an index that is out of range, which fails an assertion in the kernel."""
    import torch

    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
    torch.cuda.synchronize()


@compute
def on_jax(_: int = 0) -> tuple[str, float]:
    """Return the platform of JAX's own devices, and the result of a compiled function there."""
    import jax

    return jax.local_devices()[0].platform, float(jax.jit(lambda x: (x * 2).sum())(jax.numpy.ones(1000)))


if __name__ == "__main__":
    import torch.distributed

    torch.distributed.init_process_group()
    print(steps("cuda"))
    torch.distributed.destroy_process_group()
