"""A Ray program on the nodes of a pool: tasks, an actor that keeps state, an object that all of them share.

The plugin has already called `ray.init()`. The tasks try settings of a classifier; the actor keeps the best one.
"""

from __future__ import annotations

from typing import Any

import ray
from provider import pool_options

import skyward as sky

IMAGE = sky.Image(pip=["scikit-learn"])
SETTINGS = [(c, gamma) for c in (0.1, 1.0, 10.0) for gamma in (0.0003, 0.001, 0.003, 0.01)]


class Board:
    """The best setting so far, and who has told of any."""

    def __init__(self) -> None:
        self.best: tuple[float, Any] = (0.0, None)
        self.nodes: set[str] = set()

    def tell(self, accuracy: float, setting: Any, node: str) -> None:
        self.best = max(self.best, (accuracy, setting))
        self.nodes.add(node)

    def summary(self) -> tuple[float, Any, int]:
        return *self.best, len(self.nodes)


def try_setting(data: Any, setting: tuple[float, float], board: Any) -> float:
    """Train on three quarters of the digits, and tell the board the accuracy on the others."""
    from sklearn.svm import SVC

    x, y = data
    c, gamma = setting
    model = SVC(C=c, gamma=gamma).fit(x[:1347], y[:1347])
    accuracy = float(model.score(x[1347:], y[1347:]))
    ray.get(board.tell.remote(accuracy, setting, ray.util.get_node_ip_address()))
    return accuracy


def main() -> None:
    options = pool_options(__doc__)
    from sklearn.datasets import load_digits

    with sky.ComputePool(image=IMAGE, plugins=[sky.plugins.ray()], **options):
        board = ray.remote(Board).remote()
        data = ray.put(load_digits(return_X_y=True))  # sent once; tasks get it from their node's shared memory
        task = ray.remote(try_setting).options(scheduling_strategy="SPREAD")
        found = ray.get([task.remote(data, setting, board) for setting in SETTINGS])
        accuracy, (c, gamma), nodes = ray.get(board.summary.remote())

    if accuracy != max(found):
        raise SystemExit("the board has missed a setting")
    print(f"best of {len(found)} settings, tried on {nodes} nodes: C={c}, gamma={gamma}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
