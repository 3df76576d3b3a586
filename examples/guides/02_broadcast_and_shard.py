"""Every node takes its part of the data: class means of handwritten digits, computed on the nodes, combined here.

The means of the parts, weighted by size, give the mean of the whole: the combined classifier is exactly the one that a
single process would compute.
"""

from __future__ import annotations

from typing import Any

from provider import pool_options

import skyward as sky

IMAGE = sky.Image(pip=["scikit-learn"])


@sky.compute
def class_sums(x: Any, y: Any) -> tuple[Any, Any]:
    """Sums and counts of the images of each digit, in this node's part of the data."""
    import numpy as np

    x, y = sky.shard(x, y, shuffle=True, seed=0)  # the same rows of x and y, different ones on each node
    print(f"my part has {len(x)} images")
    one_hot = np.eye(10)[y]
    return one_hot.T @ x, one_hot.sum(axis=0)


def accuracy(means: Any, x: Any, y: Any) -> float:
    """How often the nearest mean is that of the right digit."""
    distances = ((x[:, None, :] - means[None]) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == y).mean())


def main() -> None:
    options = pool_options(__doc__)
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)

    with sky.ComputePool(image=IMAGE, **options) as pool:
        parts = class_sums(x_train, y_train) @ pool

    for node, (sums, counts) in enumerate(parts):
        print(f"node {node} alone: {accuracy(sums / counts[:, None], x_test, y_test):.3f}")
    joined = sum(sums for sums, _ in parts) / sum(counts for _, counts in parts)[:, None]
    print(f"all together: {accuracy(joined, x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
