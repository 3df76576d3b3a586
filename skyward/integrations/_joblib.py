"""joblib and scikit-learn on a pool: pools that set it up themselves, and a context manager for any pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from skyward._pool.config import Display
from skyward._pool.pool import ComputePool
from skyward.model.image import Image
from skyward.model.spec import Accelerator, Nodes, Volume, Worker
from skyward.plugins._joblib import joblib, sklearn
from skyward.plugins.base import Plugin

if TYPE_CHECKING:
    from skyward.providers.base import Provider
    from skyward.providers.fallback import Selection


class PoolSettings(TypedDict, total=False):
    """The other parameters of `ComputePool`, which are passed on to it."""

    selection: Selection | None
    nodes: int | tuple[int, int] | Nodes
    accelerator: Accelerator | str | None
    image: Image | None
    cpu: float | None
    memory: str | float | None
    architecture: str | None
    machine: str | None
    allocation: str | None
    max_hourly_cost: float | None
    budget: float | None
    env: Mapping[str, str] | None
    secrets: Sequence[str] | Mapping[str, str]
    volumes: Sequence[Volume] | Mapping[str, str]
    ttl: float | None
    provision_timeout: float
    default_compute_timeout: float | None
    checkpoints: str | Path | None
    name: str | None
    keep: str | float | None
    share: bool
    display: Display


class JoblibSettings(PoolSettings, total=False):
    """The parameters of `JoblibPool` that a `ScikitLearnPool` passes on."""

    concurrency: int | None
    worker: Worker | None
    joblib_version: str | None


class JoblibPool(ComputePool):
    """A pool on which `joblib.Parallel` runs while it is open: a `ComputePool` with `sky.plugins.joblib`.

    Calls on one node run in separate processes, as joblib's do on one machine, so that pure Python scales too.

    Args:
        provider, plugins, settings: those of `ComputePool`.
        concurrency: number of concurrent calls on each node, each in its own process; exclusive with `worker`.
        worker: how calls run on a node, if not in separate processes.
        joblib_version: of joblib on the nodes; None for any.

    Raises:
        ConfigError: a value is wrong; raised before anything is created.
    """

    def __init__(
        self,
        provider: Provider | Sequence[Provider] | None = None,
        *,
        concurrency: int | None = None,
        worker: Worker | None = None,
        plugins: Sequence[Plugin] = (),
        joblib_version: str | None = None,
        **settings: Unpack[PoolSettings],
    ) -> None:
        if worker is None:
            concurrency, worker = None, _processes(concurrency)
        super().__init__(
            provider,
            concurrency=concurrency,
            worker=worker,
            plugins=[*plugins, joblib(joblib_version)],
            **settings,
        )


class ScikitLearnPool(JoblibPool):
    """A `JoblibPool` whose nodes have scikit-learn, on which `GridSearchCV(n_jobs=-1)` and the like run.

    Args:
        sklearn_version: of scikit-learn on the nodes; None for any.
        plugins, settings: those of `JoblibPool`.
    """

    def __init__(
        self,
        provider: Provider | Sequence[Provider] | None = None,
        *,
        plugins: Sequence[Plugin] = (),
        sklearn_version: str | None = None,
        **settings: Unpack[JoblibSettings],
    ) -> None:
        super().__init__(provider, plugins=[*plugins, sklearn(sklearn_version)], **settings)


def _processes(concurrency: int | None) -> Worker:
    return Worker(concurrency=1 if concurrency is None else concurrency, executor="process")


def joblib_backend(pool: ComputePool) -> AbstractContextManager[None]:
    """Run `joblib.Parallel` on an open pool inside the block, in this thread; restore joblib's own setting afterwards.

    The pool's image must have joblib.
    """
    from skyward.plugins._joblib_backend import parallel_on

    return parallel_on(pool)


sklearn_backend = joblib_backend
