"""joblib and scikit-learn on two containers: every form of use runs there, and finds what one process finds."""

from __future__ import annotations

import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
from joblib import Parallel, delayed
from scipy import sparse  # type: ignore[import-untyped]
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.utils.parallel import Parallel as SklearnParallel
from sklearn.utils.parallel import delayed as sklearn_delayed

import skyward as sky
from skyward.integrations import JoblibPool, ScikitLearnPool, joblib_backend, sklearn_backend
from skyward.wire.frames import Connection
from skyward.wire.messages import Kind
from tests.e2e import joblib_functions as functions

NODES, PROCESSES = 2, 2
IMAGE = sky.Image(pip=["scikit-learn", "joblib"])  # what the plugins make of an empty image, so that there is one
GRID = {"C": [0.001, 0.01, 0.1, 1.0], "fit_intercept": [True, False]}
SPLITS = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    """Two nodes with two processes each; scikit-learn runs there while it is open."""
    with ScikitLearnPool(sky.Docker(), nodes=NODES, concurrency=PROCESSES) as pool:
        assert isinstance(pool, sky.ComputePool)
        yield pool


@pytest.fixture(scope="module")
def plain_pool() -> Iterator[sky.ComputePool]:
    """Two nodes without a plugin: joblib runs there inside `joblib_backend` alone."""
    with sky.ComputePool(sky.Docker(), nodes=NODES, image=IMAGE) as pool:
        yield pool


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    return x[:600] / 16, y[:600]


@contextmanager
def locally() -> Iterator[None]:
    """joblib as it is without any pool, also while one is open in this thread."""
    with joblib.parallel_config(backend="sequential"):
        yield


def nodes_used() -> set[int]:
    """The nodes that calls run on, those of this process being -1."""
    return {
        node for node, _ in Parallel(n_jobs=-1, batch_size=1)(delayed(functions.where_after)(0.1) for _ in range(8))
    }


def in_joblib_pool() -> set[int]:
    with JoblibPool(sky.Docker(), nodes=NODES, image=IMAGE):
        return nodes_used()


@sky.pool(sky.Docker(), nodes=NODES, plugins=[sky.plugins.sklearn()])
def in_decorated_function() -> set[int]:
    return nodes_used()


@pytest.mark.parametrize("way", [in_joblib_pool, in_decorated_function])
def test_calls_run_on_the_nodes_however_the_pool_is_opened(way: Callable[[], set[int]]) -> None:
    """On both nodes and never here; afterwards joblib is as it was before."""
    before = joblib.parallel.get_active_backend()
    filters = list(warnings.filters)

    assert way() == {0, 1}

    assert type(joblib.parallel.get_active_backend()[0]) is type(before[0])
    assert warnings.filters == filters


def test_a_context_manager_does_it_for_any_pool(plain_pool: sky.ComputePool) -> None:
    """Inside its block, in this thread; and by the backend's name, which means the innermost pool."""
    with joblib_backend(plain_pool):
        assert nodes_used() == {0, 1}
    with joblib.parallel_config("skyward", pool=plain_pool):
        assert nodes_used() == {0, 1}
    named = Parallel(n_jobs=2, backend="skyward", batch_size=1)(delayed(functions.where_after)(0.1) for _ in range(6))
    assert {node for node, _ in named} == {0, 1}

    assert {node for node, _ in Parallel(n_jobs=1)(delayed(functions.where)(i) for i in range(3))} == {-1}


def test_ten_thousand_small_calls_do_not_take_as_many_trips(
    pool: sky.ComputePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted on the wire; results are in order."""
    sent = count_frames(monkeypatch)

    assert Parallel(n_jobs=-1)(delayed(abs)(-number) for number in range(10_000)) == list(range(10_000))

    assert sent[Kind.CALL].messages < 1000


# scikit-learn --------------------------------------------------------------------------------------------------------


def search(digits: tuple[Any, Any], n_jobs: int | None) -> Any:
    """A grid search whose every fit says where it was done."""
    scoring = {"accuracy": "accuracy", "node": functions.node_of_fit}
    model = functions.Counted(max_iter=200)
    grid = GridSearchCV(model, GRID, cv=SPLITS, scoring=scoring, refit="accuracy", n_jobs=n_jobs)
    return grid.fit(*digits)


def nodes_of_fits(grid: Any) -> list[int]:
    return [int(node) for split in range(SPLITS) for node in grid.cv_results_[f"split{split}_test_node"]]


def fits_on(pool: sky.ComputePool) -> list[int]:
    """How many fits each node has counted since this was asked last."""
    return sky.compute(functions.count_fits)() @ pool


@pytest.fixture(scope="module")
def local_search(digits: tuple[Any, Any]) -> Any:
    with locally():
        return search(digits, n_jobs=1)


@pytest.mark.parametrize("form", ["pool", "backend"])
def test_a_grid_search_finds_the_same_and_fits_nothing_here(
    form: str, request: pytest.FixtureRequest, digits: tuple[Any, Any], local_search: Any
) -> None:
    """Best parameters and all scores are those of one process; every fit was counted in a container."""
    pool: sky.ComputePool = request.getfixturevalue("pool" if form == "pool" else "plain_pool")
    fits_on(pool)

    with sklearn_backend(pool):
        grid = search(digits, n_jobs=-1)

    fits = len(ParameterGrid(GRID)) * SPLITS
    assert grid.best_params_ == local_search.best_params_
    np.testing.assert_allclose(
        grid.cv_results_["mean_test_accuracy"], local_search.cv_results_["mean_test_accuracy"], atol=1e-9
    )
    assert len(nodes_of_fits(grid)) == fits
    assert set(nodes_of_fits(grid)) == {0, 1}
    assert set(nodes_of_fits(local_search)) == {-1}
    assert sum(fits_on(pool)) == fits


def test_settings_of_scikit_learn_travel(pool: sky.ComputePool) -> None:
    """Its configuration, the client's warning filters, and no more threads than a call's share of the CPUs."""
    unknown = types.ModuleType("only_on_the_client")
    exec("class Told(UserWarning): pass", vars(unknown))
    with sklearn.config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", vars(unknown)["Told"])  # no node has this class
        found = SklearnParallel(n_jobs=-1)(sklearn_delayed(functions.settings)(i) for i in range(8))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", RuntimeWarning)
        seen = SklearnParallel(n_jobs=-1)(sklearn_delayed(functions.warn)(i) for i in range(4))

    assert {(finite, threads) for _, finite, threads in found} == {(True, "1")}
    assert all(node in (0, 1) and count == 1 for node, count in seen)


# large arguments -----------------------------------------------------------------------------------------------------


class Sent:
    """What the client has sent of one kind of message."""

    def __init__(self) -> None:
        self.messages = self.nbytes = 0


def count_frames(monkeypatch: pytest.MonkeyPatch) -> dict[int, Sent]:
    counted: dict[int, Sent] = {kind: Sent() for kind in Kind}
    guard, enqueue = threading.Lock(), Connection.enqueue

    def counting(connection: Connection, *frames: Any, **how: Any) -> None:
        with guard:
            for frame in frames:
                counted[frame.kind].messages += 1
                counted[frame.kind].nbytes += len(frame.head) + sum(memoryview(b).nbytes for b in frame.buffers)
        enqueue(connection, *frames, **how)

    monkeypatch.setattr(Connection, "enqueue", counting)
    return counted


def test_shared_arguments_reach_each_process_once(pool: sky.ComputePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls use them; in a later loop they are there already."""
    array = np.random.default_rng(0).random(1_000_000)  # 8 MB
    matrix = sparse.random(200, 25_000, density=0.05, format="csr", random_state=0)
    size = array.nbytes + matrix.data.nbytes + matrix.indices.nbytes
    expected = float(array.sum()), False, float(matrix.sum())
    sent = count_frames(monkeypatch)

    for _ in range(2):
        found = Parallel(n_jobs=-1, batch_size=1)(delayed(functions.facts_of)(array, matrix) for _ in range(24))

        assert {fact[0] for fact in found} == {0, 1}
        assert all(fact[1:] == expected for fact in found)
        assert size * NODES <= sent[Kind.SHARED].nbytes < size * NODES * PROCESSES + 100_000
        assert sent[Kind.CALL].nbytes < 200_000


# ends ----------------------------------------------------------------------------------------------------------------


def test_an_error_stops_the_others(pool: sky.ComputePool) -> None:
    """It comes as itself, with the node's traceback; calls that would take a minute are ended, and the pool goes on."""
    began = time.monotonic()
    with pytest.raises(LookupError, match="the third") as caught:
        Parallel(n_jobs=-1, batch_size=1, pre_dispatch="all")(delayed(functions.raise_third)(i) for i in range(12))

    assert "raise_third" in str(caught.value.__cause__)
    assert any("raised by raise_third() on node" in note for note in caught.value.__notes__)
    assert nodes_used() == {0, 1}
    assert time.monotonic() - began < 40
    assert any(sky.compute(functions.was_stopped)(0) @ pool)


def test_loops_inside_calls_run_where_the_call_does(pool: sky.ComputePool) -> None:
    """One after the other, in the process of the call."""
    for inner, outer in Parallel(n_jobs=-1)(delayed(functions.inside)(i) for i in range(4)):
        assert set(inner) == {outer}
        assert outer[0] in (0, 1)
