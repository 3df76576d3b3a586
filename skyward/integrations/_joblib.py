"""joblib and scikit-learn on a pool: pools that do it by themselves, and a context manager for any pool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from skyward.model.spec import Worker
from skyward.plugins._joblib import joblib, sklearn
from skyward.plugins.base import Plugin
from skyward.pool.pool import ComputePool

if TYPE_CHECKING:
    from skyward.providers.base import Provider


class JoblibPool(ComputePool):
    """A pool on which `joblib.Parallel` runs while it is open: a `ComputePool` with `sky.plugins.joblib`.

    Calls on one node run in processes of their own, as joblib's do on one machine, so that pure Python scales too.

    Args:
        provider, plugins, settings: those of `ComputePool`.
        concurrency: calls at once on each node, each in its own process; exclusive with `worker`.
        worker: how calls run on a node, where that is not what is wanted.
        joblib_version: of joblib on the nodes; None for any.

    Raises:
        ConfigError: a value is wrong; raised before anything is created.
    """

    def __init__(
        self,
        provider: Provider | None = None,
        *,
        concurrency: int | None = None,
        worker: Worker | None = None,
        plugins: Sequence[Plugin] = (),
        joblib_version: str | None = None,
        **settings: Any,
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
    """A `JoblibPool` whose nodes have scikit-learn: `GridSearchCV(n_jobs=-1)` and the like run there.

    Args:
        sklearn_version: of scikit-learn on the nodes; None for any.
        plugins, settings: those of `JoblibPool`.
    """

    def __init__(
        self,
        provider: Provider | None = None,
        *,
        plugins: Sequence[Plugin] = (),
        sklearn_version: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(provider, plugins=[*plugins, sklearn(sklearn_version)], **settings)


def _processes(concurrency: int | None) -> Worker:
    return Worker(concurrency=1 if concurrency is None else concurrency, executor="process")


def joblib_backend(pool: ComputePool) -> AbstractContextManager[None]:
    """Run `joblib.Parallel` on an open pool inside the block, in this thread; joblib's own setting is then restored.

    The pool's image must have joblib.
    """
    from skyward.plugins._joblib_backend import parallel_on

    return parallel_on(pool)


sklearn_backend = joblib_backend
