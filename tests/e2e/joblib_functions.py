"""What the tests of joblib and scikit-learn run on nodes; its module imports nothing that the image lacks."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression

import skyward as sky

FITS = Path("/tmp/skyward-fits")  # a line per fit, in the container that did it
STOPPED = Path("/tmp/skyward-stopped")


def node() -> int:
    """The node this runs on, -1 outside containers of a pool."""
    info = sky.instance_info()
    return -1 if info is None else info.node


def where(_number: int) -> tuple[int, int]:
    """Node and process."""
    return node(), os.getpid()


def where_after(pause_s: float) -> tuple[int, int]:
    """The same, after a pause long enough for others to be asked as well."""
    time.sleep(pause_s)
    return node(), os.getpid()


def inside(_number: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Where the calls of a loop inside this call run, and where this call does."""
    return Parallel(n_jobs=4)(delayed(where)(i) for i in range(6)), where(0)


def facts_of(array: Any, matrix: Any) -> tuple[int, float, bool, float]:
    """Node, sum of an array, whether it may be written into, sum of a sparse matrix; long enough to need both nodes."""
    time.sleep(0.05)
    return node(), float(array.sum()), bool(array.flags.writeable), float(matrix.sum())


def raise_third(number: int) -> int:
    """The third raises, the others take a minute unless they are stopped."""
    if number == 2:
        raise LookupError("the third")
    try:
        time.sleep(60)
    except BaseException:
        STOPPED.touch()
        raise
    return number


def was_stopped(_number: int) -> bool:
    """Whether a call was stopped on this node."""
    return STOPPED.exists()


def die(_number: int) -> None:
    """End this worker as the kernel would."""
    os.kill(os.getpid(), 9)


def warn(number: int) -> tuple[int, int]:
    """Node, and how many warnings this raised are seen."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("about a node", UserWarning, stacklevel=1)
        warnings.warn("of another kind", RuntimeWarning, stacklevel=1)
    return node(), len(seen)


def settings(_number: int) -> tuple[int, bool, str]:
    """Node, a setting of scikit-learn, and the threads that numerical libraries may use."""
    import sklearn

    return node(), bool(sklearn.get_config()["assume_finite"]), os.environ.get("OMP_NUM_THREADS", "")


class Counted(LogisticRegression):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that knows where it was fitted, and leaves a line there."""

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Counted:
        self.node_ = node()
        with FITS.open("a") as lines:
            lines.write("fit\n")
        super().fit(x, y, sample_weight)
        return self


def node_of_fit(model: Counted, _x: Any, _y: Any) -> float:
    """A score that says where the model was fitted."""
    return float(model.node_)


def count_fits() -> int:
    """How many fits this node has done since it was asked last."""
    count = len(FITS.read_text().splitlines()) if FITS.exists() else 0
    FITS.unlink(missing_ok=True)
    return count
