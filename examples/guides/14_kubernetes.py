"""Search for the best settings of a model on nodes that may be preempted, as pods of a busy cluster are.

Every setting is a separate call with `retries=`: if its pod is deleted, evicted or preempted, it runs again elsewhere.
Runs on containers on this machine, or with `--provider kubernetes --registry ...` on pods of a cluster.
"""

from __future__ import annotations

import itertools
import socket
from typing import Any

from provider import pool_options

import skyward as sky

IMAGE = sky.Image(pip=["scikit-learn"])


@sky.compute(retries=3)
def score(trees: int, depth: int, x: Any, y: Any) -> tuple[float, int, int, str]:
    """Cross-validated accuracy of one setting, and where that was found out."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    model = RandomForestClassifier(trees, max_depth=depth, random_state=0)
    return float(cross_val_score(model, x, y, cv=3).mean()), trees, depth, socket.gethostname()


def main() -> None:
    options = pool_options(__doc__, nodes=2)
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    settings = itertools.product((10, 30), (5, 15))

    with sky.ComputePool(image=IMAGE, **options) as pool:
        calls = [score(trees, depth, x, y) for trees, depth in settings]
        found = []
        for accuracy, trees, depth, host in sky.gather(*calls, stream=True) >> pool:
            print(f"{trees} trees of depth {depth}: accuracy {accuracy:.3f}, on {host}")
            found.append((accuracy, trees, depth))

    accuracy, trees, depth = max(found)
    print(f"best of {len(found)}: {trees} trees of depth {depth}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
