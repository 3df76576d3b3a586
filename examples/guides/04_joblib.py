"""joblib's `Parallel` on the nodes of a pool: a confidence interval from two thousand resamplings.

The program is the same as for one machine; the pool around it decides where calls run. Short calls are sent in batches,
and arrays that all of them share are sent to each node once.
"""

from __future__ import annotations

import time
from typing import Any

from joblib import Parallel, delayed
from provider import pool_options

import skyward as sky
from skyward.integrations import JoblibPool, joblib_backend

IMAGE = sky.Image(pip=["scikit-learn"])
RESAMPLINGS = 2000


def resampled_difference(values: Any, ill: Any, seed: int) -> tuple[float, int]:
    """Difference of two means in a sample drawn with replacement, and the node that drew it (-1: this process)."""
    import numpy as np

    rows = np.random.default_rng(seed).integers(0, len(values), len(values))
    drawn, ill = values[rows], ill[rows]
    info = sky.instance_info()
    return float(drawn[ill].mean() - drawn[~ill].mean()), info.node if info else -1


def interval(values: Any, ill: Any) -> str:
    """The interval that holds 95 of 100 resampled differences, and who computed them."""
    import numpy as np

    began = time.perf_counter()
    drawn = Parallel(n_jobs=-1)(delayed(resampled_difference)(values, ill, seed) for seed in range(RESAMPLINGS))
    low, high = np.percentile([difference for difference, _ in drawn], [2.5, 97.5])
    nodes = sorted({node for _, node in drawn})
    return f"{low:.3f} to {high:.3f} mm, drawn on nodes {nodes} in {time.perf_counter() - began:.2f} s"


def main() -> None:
    options = pool_options(__doc__)
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)  # 569 tumours, shipped with scikit-learn
    radius, malignant = x[:, 0], y == 0

    # a pool made for joblib: calls run in processes, `concurrency` of them on each node
    with JoblibPool(image=IMAGE, concurrency=2, **options):
        print(f"larger radius of malignant tumours: {interval(radius, malignant)}")

    # any pool with the plugin: the same while it is open
    with sky.ComputePool(image=IMAGE, plugins=[sky.plugins.joblib()], **options) as pool:
        print(f"once more: {interval(radius, malignant)}")

        # a context manager makes joblib use any open pool within a block
        with joblib_backend(pool):
            print(f"and again: {interval(radius, malignant)}")


if __name__ == "__main__":
    main()
