"""Several ranks on each node: one per GPU if the nodes have GPUs, otherwise two per node."""

from __future__ import annotations

from typing import Any

import skyward as sky


@sky.compute
@sky.integrations.torch
def train(steps: int) -> dict[str, Any]:
    """Fit digits with one model on all ranks; who this rank is, and what it ends with."""
    import os

    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel as DDP

    info = sky.instance_info()
    assert info is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # the current GPU is the rank's own
    pixels, digits = load_digits(return_X_y=True)
    pixels, digits = sky.shard(pixels, digits, shuffle=True, seed=1, drop_last=True)  # the rank's part, not the node's
    x = torch.tensor(pixels / 16, dtype=torch.float32, device=device)
    y = torch.tensor(digits, device=device)

    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(64, 10).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    correct = (model(x).argmax(dim=1) == y).sum().float()
    dist.all_reduce(correct)
    return {
        "rank": dist.get_rank(),
        "node": info.node,
        "local rank": int(os.environ["LOCAL_RANK"]),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "samples": len(x),
        "accuracy": float(correct) / (len(x) * dist.get_world_size()),
    }


def main() -> None:
    from provider import pool_options

    options = pool_options(__doc__)
    worker = sky.Worker(per_node="gpu" if options["accelerator"] else 2)
    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(**options, worker=worker, image=image, plugins=[sky.plugins.torch()]) as pool:
        results = train(steps=100) @ pool  # on every rank of every node, in the order of the ranks

    for result in results:
        print(", ".join(f"{name} {value}" for name, value in result.items()))
    assert len({result["accuracy"] for result in results}) == 1


if __name__ == "__main__":
    main()
