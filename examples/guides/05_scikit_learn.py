"""A scikit-learn grid search whose fits run on the nodes of a pool.

The search itself is ordinary code: anything with `n_jobs` runs on the nodes while a pool with scikit-learn is open.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from provider import pool_options

import skyward as sky
from skyward.integrations import ScikitLearnPool

GRID = {"svc__C": [0.1, 1, 10, 100], "svc__gamma": [0.0005, 0.001, 0.005, 0.02]}


def node_of_score(_model: Any, _x: Any, _y: Any) -> int:
    """A score that says on which node a model was tried: -1 for this process."""
    info = sky.instance_info()
    return info.node if info else -1


def main() -> None:
    options = pool_options(__doc__)
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    model = make_pipeline(StandardScaler(), SVC())
    scoring = {"accuracy": "accuracy", "node": node_of_score}
    grid = GridSearchCV(model, GRID, cv=3, scoring=scoring, refit="accuracy", n_jobs=-1)

    with ScikitLearnPool(concurrency=2, **options):
        began = time.perf_counter()
        grid.fit(x_train, y_train)
        took_s = time.perf_counter() - began
        scores = cross_val_score(grid.best_estimator_, x_train, y_train, cv=5, n_jobs=-1)

    nodes = Counter(int(node) for split in range(3) for node in grid.cv_results_[f"split{split}_test_node"])
    fits = ", ".join(f"{count} on node {node}" for node, count in sorted(nodes.items()))
    print(f"{sum(nodes.values())} fits in {took_s:.1f} s: {fits}")
    print(f"best: {grid.best_params_}")
    print(f"cross-validated accuracy {scores.mean():.3f}, on digits nobody trained on {grid.score(x_test, y_test):.3f}")


if __name__ == "__main__":
    main()
