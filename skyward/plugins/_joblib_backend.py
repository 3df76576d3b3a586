"""`SkywardBackend`: joblib's `Parallel`, and all of scikit-learn that uses it, on the nodes of a pool.

Client only. joblib groups calls into batches whose size follows their duration; a batch is one call of the pool.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import cloudpickle
from joblib.parallel import (
    BatchedCalls,
    ParallelBackendBase,
    SequentialBackend,
    parallel_config,
    register_parallel_backend,
)

from skyward.model.call import active_target
from skyward.plugins._joblib_flow import BatchSize, Callback, Flow, Send, Sent
from skyward.plugins._joblib_node import restored_filters, run_batch

if TYPE_CHECKING:
    from skyward.pool.pool import ComputePool
    from skyward.pool.series import Series

NAME = "skyward"


class SkywardBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Runs joblib's batches on a pool.

    Args:
        pool: an open pool; None for the one that `>> sky` means.
        others: what joblib gives every backend.

    Raises:
        NoActivePoolError: no pool was given, and none is open.
    """

    supports_retrieve_callback = True  # results are taken in a thread of ours; turns on timeouts and generators
    default_n_jobs = -1

    def __init__(self, pool: ComputePool | None = None, **others: Any) -> None:
        super().__init__(**others)
        self._pool = _open_pool() if pool is None else pool
        self._flows: dict[int, Flow] = {}  # by the `Parallel` they are of
        self._guard = threading.Lock()
        self._size = BatchSize()
        self._filters: tuple[Any, _Filters] | None = None

    # what joblib asks ------------------------------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many jobs joblib shall reckon with; never 1, for which it would run the calls in this process."""
        return 0 if n_jobs == 0 else max(2, self._at_once(n_jobs))

    def configure(self, n_jobs: int = -1, parallel: Any = None, **_of_local_backends: Any) -> int:
        """Begin a `Parallel`. Its parameters for memory maps and processes of this machine have no meaning here."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: BatchedCalls, callback: Callback | None = None) -> Future[list[Any]]:
        """Send a batch, or let it wait until no more run than the caller asked for. Problems are in the future."""
        parallel, call = getattr(callback, "parallel", None), getattr(callback, "parallel_call_id", None)
        with self._guard:
            flow = self._flows.get(id(parallel))
            if flow is None or flow.call != call:
                if flow is not None:
                    flow.close()
                limit = self._at_once(None if parallel is None else parallel.n_jobs)
                flow = Flow(
                    parallel, call, limit if limit < self._pool.total_slots else None, self._sender(), self._size
                )
                self._flows[id(parallel)] = flow
        return flow.submit(func, callback)

    def retrieve_result_callback(self, out: Future[list[Any]]) -> list[Any]:
        """The results of a batch that has ended; raises what a call in it has raised."""
        return out.result()

    def compute_batch_size(self) -> int:
        """How many calls the next batch shall have."""
        return self._size.next()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002 - the pool stays as it is
        """Stop the batches of the `Parallel` that is aborting: those that wait, and those that run."""
        for flow in self._remove(lambda parallel: getattr(parallel, "_aborting", True)):
            flow.close()

    def terminate(self) -> None:
        """End of a `Parallel`; the pool stays open, and keeps the large arguments it has been sent."""
        for flow in self._remove(lambda parallel: not getattr(parallel, "_calling", False)):
            flow.close()
        self._size = BatchSize()

    def close(self) -> None:
        """Stop what is left, such as a generator of results that nobody has read to its end."""
        for flow in self._remove(lambda _parallel: True):
            flow.close()

    def get_nested_backend(self) -> tuple[SequentialBackend, None]:
        """What `Parallel` means inside the calls: a node's CPUs are shared out already."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    # our side --------------------------------------------------------------------------------------------------

    def _at_once(self, n_jobs: int | None) -> int:
        slots = self._pool.total_slots
        if n_jobs is None:
            return slots
        return max(1, slots + 1 + n_jobs) if n_jobs < 0 else min(n_jobs, slots)

    def _remove(self, unwanted: Callable[[Any], bool]) -> list[Flow]:
        with self._guard:
            removed = [flow for flow in self._flows.values() if unwanted(flow.parallel)]
            for flow in removed:
                del self._flows[id(flow.parallel)]
        return removed

    def _sender(self) -> Send:
        series: list[Series] = []  # made with the first batch: a pool that is closed is the batch's problem

        def send(batch: BatchedCalls) -> Sent:
            if not series:
                series.append(self._pool.series())
            items = [(self._portable(fn), args, kwargs) for fn, args, kwargs in batch.items]
            level = (self.nesting_level or 0) + 1
            return series[0].run_async(run_batch, (items, level, _versions()), name=_name(items[0][0]))

        return send

    def _portable(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function as scikit-learn sends it, its warning filters in a form that every node can load."""
        filters = getattr(fn, "warning_filters", None) if type(fn).__module__ == "sklearn.utils.parallel" else None
        if not filters:
            return fn
        if self._filters is None or self._filters[0] != filters:
            self._filters = list(filters), _Filters(filters)
        fn = copy.copy(fn)
        fn.warning_filters = self._filters[1]  # type: ignore[attr-defined]
        return fn


class _Filters:
    """Warning filters that unpickle to a list of those that can be loaded where that happens."""

    def __init__(self, filters: Iterable[Any]) -> None:
        self._entries = tuple(entry for entry in map(_packed, filters) if entry is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        return restored_filters, (self._entries,)


def _packed(entry: Any) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(entry)
    except Exception:  # its category is a class that cannot be sent: no node warns with it
        return None
    return data


def _versions() -> tuple[tuple[str, str], ...]:
    return tuple((name, sys.modules[name].__version__) for name in ("joblib", "sklearn") if name in sys.modules)


def _name(fn: Callable[..., Any]) -> str:
    name: str = getattr(fn, "__qualname__", type(fn).__name__)
    return name.rpartition("<locals>.")[2]


def _open_pool() -> ComputePool:
    remedy = "Open one around this call: `with sky.ComputePool(..., plugins=[sky.plugins.joblib()]):`."
    target: Any = active_target(f"The joblib backend {NAME!r}", remedy)
    return target  # type: ignore[no-any-return]


class parallel_on:  # noqa: N801 - a class, for exceptions that forbid changes: python/cpython#99856
    """Let `Parallel` run on this pool inside the block, in this thread; joblib's configuration is then as before."""

    def __init__(self, pool: ComputePool) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        self._backend = SkywardBackend(self._pool)
        self._config = parallel_config(backend=self._backend)

    def __exit__(self, *_: object) -> None:
        try:
            self._backend.close()
        finally:
            self._config.__exit__(None, None, None)


register_parallel_backend(NAME, SkywardBackend)
