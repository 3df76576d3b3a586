"""Send a PyTorch model to a node, train it there, and keep using it here: it comes back as an ordinary module."""

from __future__ import annotations

from typing import Any

import skyward as sky


@sky.compute
def train(model: Any, x: Any, y: Any, epochs: int) -> tuple[Any, list[float]]:
    """The trained model, and the mean loss of each epoch."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for _ in range(epochs):
        batches = torch.randperm(len(x), device=device).split(64)
        total = 0.0
        for rows in batches:
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(batches))
    print(f"trained on {device} for {epochs} epochs")
    return model, losses  # a model on a GPU arrives in main memory if the client has none


def main() -> None:
    import torch
    from provider import pool_options
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(x[1437:]).argmax(dim=1) == y[1437:]).float().mean())

    print(f"before:        accuracy {accuracy():.3f}")
    options = pool_options(__doc__, nodes=1)
    with sky.ComputePool(**options, image=sky.Image(pip=["scikit-learn"]), plugins=[sky.plugins.torch()]) as pool:
        for round_trip in (1, 2):
            model, losses = train(model, x[:1437], y[:1437], epochs=5) >> pool
            device = next(model.parameters()).device
            print(f"round trip {round_trip}:  accuracy {accuracy():.3f}, loss {losses[-1]:.3f}, back on {device}")


if __name__ == "__main__":
    main()
