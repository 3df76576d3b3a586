"""Train a digit classifier with DistributedDataParallel: one model, with each node training on its part of the data."""

import skyward as sky


@sky.compute
@sky.integrations.torch
def train(epochs: int, batch_size: int, lr: float) -> dict[str, float]:
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pixels, digits = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    x_train, y_train, x_test, y_test = x[:1437], y[:1437], x[1437:].to(device), y[1437:].to(device)

    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    ).to(device)

    if dist.is_initialized():
        model = DDP(model)

    dataset = TensorDataset(x_train, y_train)
    sampler: DistributedSampler | None = None
    if dist.is_initialized():
        sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, shuffle=sampler is None)

    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loss_fn = nn.CrossEntropyLoss()
    info = sky.instance_info()
    is_head = info is None or info.is_head

    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)  # a different order in every epoch, the same on all nodes
        model.train()
        total_loss, correct, seen = 0.0, 0, 0
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            optimizer.zero_grad()
            loss.backward()  # here DDP averages the gradients of all nodes
            optimizer.step()
            total_loss += loss.item() * len(inputs)
            correct += int((outputs.argmax(dim=1) == targets).sum())
            seen += len(inputs)

        # What each node counted on its part of the data, summed in place over all
        # nodes. The result is the same everywhere, so the head alone can print it.
        # These are sums and not means, since the parts may differ in size.

        metrics = torch.tensor([total_loss, correct, seen], device=device)
        if dist.is_initialized():
            dist.all_reduce(metrics, op=dist.ReduceOp.SUM)
        mean_loss, accuracy = (metrics[:2] / metrics[2]).tolist()
        if is_head:
            print(f"epoch {epoch + 1:2}: loss {mean_loss:.3f}, accuracy {accuracy:.3f} on {int(metrics[2])} digits")

    model.eval()
    with torch.no_grad():
        test_accuracy = float((model(x_test).argmax(dim=1) == y_test).float().mean())
    checksum = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    return {"loss": mean_loss, "accuracy": accuracy, "test accuracy": test_accuracy, "checksum": checksum}


def main() -> None:
    from provider import pool_options

    image = sky.Image(pip=["scikit-learn"])
    with sky.ComputePool(**pool_options(__doc__), image=image, plugins=[sky.plugins.torch()]) as pool:
        results = train(epochs=10, batch_size=32, lr=0.005) @ pool

    for node, result in enumerate(results):
        print(f"node {node}: " + ", ".join(f"{name} {value:.6f}" for name, value in result.items()))
    assert len({result["checksum"] for result in results}) == 1, "the nodes' models differ"


if __name__ == "__main__":
    main()
