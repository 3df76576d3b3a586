"""Keep training through the loss of a node, three times: the final weights equal those of an undisturbed run.

After each epoch the function commits its state: weights, momentum, and the generator that shuffles the data. When its
node is lost, the call runs again on another one and starts from the last commit.
"""

from __future__ import annotations

import os
import pickle
import signal
from typing import Any

from provider import pool_options

import skyward as sky

IMAGE = sky.Image(pip=["scikit-learn"])


def gradients(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], float]:
    """Of a network with one hidden layer, for a batch of rows; and its loss."""
    import numpy as np

    first, second = weights
    hidden = np.maximum(x @ first, 0)
    scores = hidden @ second
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log(chances[np.arange(len(y)), y]).mean()
    wrong = (chances - np.eye(10)[y]) / len(y)
    return [x.T @ ((wrong @ second.T) * (hidden > 0)), hidden.T @ wrong], float(loss)


@sky.compute(retries=3)
def train(name: str, x: Any, y: Any, epochs: int, lose_after: tuple[int, ...]) -> tuple[list[Any], int]:
    """The weights, and how many runs it took. The node is lost after each of these epochs."""
    import numpy as np

    state = sky.checkpoint(name)
    if state.commits:
        weights, speeds, random, done, runs = pickle.loads((state / "state.pickle").read_bytes())
    else:
        random, done, runs = np.random.default_rng(0), 0, 0
        weights = [random.normal(0, 0.1, size=shape) for shape in ((64, 32), (32, 10))]
        speeds = [np.zeros_like(each) for each in weights]
    runs += 1
    print(f"run {runs} begins after epoch {done}")
    for epoch in range(done + 1, epochs + 1):
        for rows in np.array_split(random.permutation(len(x)), len(x) // 32):
            slopes, loss = gradients(weights, x[rows], y[rows])
            speeds = [0.9 * speed - 0.05 * slope for speed, slope in zip(speeds, slopes, strict=True)]
            weights = [weight + speed for weight, speed in zip(weights, speeds, strict=True)]
        (state / "state.pickle").write_bytes(pickle.dumps((weights, speeds, random, epoch, runs)))
        state.commit()  # from here on this epoch cannot be lost
        if epoch in lose_after:
            print(f"epoch {epoch}: loss {loss:.3f}; and the node is gone")
            os.kill(os.getppid(), signal.SIGKILL)  # ends the node, as when a cloud reclaims the machine
            signal.pause()
    return weights, runs


def main() -> None:
    options = pool_options(__doc__, nodes=1)
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x = pixels / 16

    with sky.ComputePool(image=IMAGE, **options) as pool:
        whole, _ = train("whole", x[:1437], y[:1437], 12, ()) >> pool
        struck, runs = train("struck", x[:1437], y[:1437], 12, (3, 6, 9)) >> pool

    hidden = (x[1437:] @ struck[0]).clip(0)
    right = ((hidden @ struck[1]).argmax(axis=1) == y[1437:]).mean()
    equal = all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(whole, struck, strict=True))
    print(f"{runs} runs, equal to the last bit: {equal}, accuracy {right:.3f}")
    if not equal:
        raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
