"""Train on handwritten digits in two containers, combine both models here, and see where the time went.

make demo            # on this machine's Docker engine
python examples/digits.py --provider local     # the same without containers
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import skyward as sky

if TYPE_CHECKING:
    import numpy as np

IMAGE = sky.Image(pip=["scikit-learn"])


@sky.compute
def train(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression

    info = sky.instance_info()
    x, y = sky.shard(x, y, shuffle=True, seed=42)
    started = time.perf_counter()
    model = LogisticRegression(max_iter=500).fit(x, y)
    seconds = time.perf_counter() - started
    print(f"trained on {len(x)} of the digits in {seconds:.2f} s")
    return {
        "node": info.node if info else 0,
        "host": info.hostname if info else "",
        "samples": len(x),
        "seconds": seconds,
        "coef": model.coef_,
        "intercept": model.intercept_,
    }


def main() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["docker", "local"], default="docker")
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    provider = sky.Docker() if options.provider == "docker" else sky.Local()

    x, y = load_digits(return_X_y=True)  # 1,797 images of 8 x 8 pixels, shipped with scikit-learn
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)

    began = time.perf_counter()
    with sky.ComputePool(provider, nodes=options.nodes, image=IMAGE) as pool:
        running = time.perf_counter()
        results = train(x_train, y_train) @ pool
        first_result = time.perf_counter()
    stages = pool.stages

    def accuracy(coef: np.ndarray, intercept: np.ndarray) -> float:
        return float(((x_test @ coef.T + intercept).argmax(axis=1) == y_test).mean())

    print(f"\n{'model':<12}{'samples':>8}{'train s':>9}{'accuracy':>10}")
    for r in results:
        name = f"node {r['node']}"
        print(f"{name:<12}{r['samples']:>8}{r['seconds']:>9.2f}{accuracy(r['coef'], r['intercept']):>10.3f}")
    coef = sum(r["coef"] for r in results) / len(results)
    intercept = sum(r["intercept"] for r in results) / len(results)
    print(f"{'combined':<12}{len(x_train):>8}{'':>9}{accuracy(coef, intercept):>10.3f}")

    print(
        f"\nimage {stages['image']:.2f} s, start {stages['start']:.2f} s, run {first_result - running:.2f} s, "
        f"stop {stages['stop']:.2f} s; from pool start to first result {first_result - began:.2f} s"
    )


if __name__ == "__main__":
    main()
