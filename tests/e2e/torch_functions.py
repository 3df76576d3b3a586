"""What the tests of PyTorch and Transformers run on nodes; its module imports nothing that the image lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import skyward as sky

EPOCHS, STEPS, BATCH, FEATURES, CLASSES = 8, 42, 32, 64, 10  # a batch is that of all ranks together
ENVIRONMENT = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "CUDA_VISIBLE_DEVICES",
)


def digits() -> tuple[Any, Any]:
    """The 1,797 handwritten digits that scikit-learn ships, as tensors so precise that rounding never shows."""
    import torch
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float64), torch.tensor(y)


def model_of(seed: int) -> Any:
    """The same small classifier for the same seed."""
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES)).double()


def trained(model: Any, batches: Iterator[tuple[Any, Any]]) -> list[float]:
    """The loss of each step."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def accuracy(model: Any) -> float:
    """On the digits beyond those that are trained on."""
    x, y = digits()
    x, y = x[STEPS * BATCH :], y[STEPS * BATCH :]
    return float((model(x).argmax(dim=1) == y).float().mean())


@sky.compute
def train_with_ddp(seed: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """As in the documents: DDP, DistributedSampler, DataLoader, metrics by all_reduce; each rank starts differently."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(model_of(seed + rank))  # which gives all ranks the parameters of rank 0
    x, y = digits()
    data = TensorDataset(x[: STEPS * BATCH], y[: STEPS * BATCH])
    sampler: Any = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=False)
    loader = DataLoader(data, batch_size=BATCH // world, sampler=sampler)
    losses = trained(model, (batch for _ in range(epochs) for batch in loader))
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    info = sky.instance_info()
    assert info is not None
    return {
        "rank": rank,
        "node": info.node,
        "pid": os.getpid(),
        "losses": (mean / world).tolist(),
        "state": {name: value.clone() for name, value in model.module.state_dict().items()},
        "accuracy": accuracy(model.module),
    }


@sky.compute
def train_alone(seed: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """The same training in one process, on batches as large as those of all ranks together."""
    model = model_of(seed)
    x, y = digits()
    x, y = x[: STEPS * BATCH], y[: STEPS * BATCH]
    once = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    losses = trained(model, iter(once * epochs))
    return {"losses": losses, "state": model.state_dict(), "accuracy": accuracy(model)}


@sky.compute
def sum_of_ranks() -> tuple[float, dict[str, str | None]]:
    """The sum of all ranks, by one all_reduce; and the environment it needed."""
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return total.item(), {name: os.environ.get(name) for name in ENVIRONMENT}


@sky.compute
def group_is_there() -> bool:
    """Whether a group was made before the call."""
    import torch.distributed as dist

    return bool(dist.is_initialized())


def init_and_sum(backend: str) -> float:
    """A program written for another launcher: it makes the group itself, and ends it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend=backend)
    total = torch.ones(())
    dist.all_reduce(total)
    dist.destroy_process_group()
    return float(total)


@sky.compute
@sky.integrations.torch()
def decorated_and_makes_its_own_group(backend: str) -> float:
    return init_and_sum(backend)


@sky.integrations.torch(backend="gloo")
@sky.compute
def decorated_above() -> float:
    return init_and_sum("gloo")


@sky.compute
@sky.integrations.torch
@sky.stdout(only="head")
def on_one_node_too() -> tuple[int, float]:
    import torch.distributed as dist

    print(f"rank {dist.get_rank()} speaks")
    return dist.get_world_size(), init_and_sum("nccl")


@sky.compute
def without_torch(values: list[int]) -> int:
    return sum(values)
