"""`SkywardBackend`: joblib's `Parallel`, and everything in scikit-learn that uses it, on the nodes of a pool.

Client only. joblib groups short calls into batches, as for its own backends; a batch is one call of the pool.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import cloudpickle
from joblib.parallel import (
    AutoBatchingMixin,
    BatchedCalls,
    ParallelBackendBase,
    SequentialBackend,
    parallel_config,
    register_parallel_backend,
)

from skyward.plugins._joblib import restored_filters, run_batch
from skyward.runtime.active_pool import active_target

if TYPE_CHECKING:
    from skyward.model.call import OpenPool, Series

NAME = "skyward"
Callback = Callable[[Any], None]
Sent = Future[list[Any]]  # results of the calls
Send = Callable[[BatchedCalls], Sent]


class SkywardBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Runs joblib's batches on a pool.

    Args:
        pool: an open pool; None for the one that `>> sky` means.
        others: joblib's parameters for every backend.

    Raises:
        NoActivePoolError: no pool was given, and none is open.
    """

    supports_retrieve_callback = True  # results are handled in a thread of this class; enables timeouts and generators
    default_n_jobs = -1

    def __init__(self, pool: OpenPool | None = None, **others: Any) -> None:
        super().__init__(**others)
        self._pool = _open_pool() if pool is None else pool
        self._flows: dict[int, Flow] = {}  # by the `Parallel` that they belong to
        self._guard = threading.Lock()
        self._filters: tuple[Any, _Filters] | None = None

    # joblib's interface ------------------------------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of jobs joblib plans for; never 1, for which it would run the calls in this process."""
        return 0 if n_jobs == 0 else max(2, self._at_once(n_jobs))

    def configure(self, n_jobs: int = -1, parallel: Any = None, **_of_local_backends: Any) -> int:
        """Start a `Parallel`. Its parameters for memory maps and local processes are ignored."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: BatchedCalls, callback: Callback | None = None) -> Future[list[Any]]:
        """Send a batch, or queue it while the requested number is running. Errors are in the future."""
        parallel, call = getattr(callback, "parallel", None), getattr(callback, "parallel_call_id", None)
        with self._guard:
            flow = self._flows.get(id(parallel))
            if flow is None or flow.call != call:
                if flow is not None:
                    flow.close()
                limit, slots = self._at_once(None if parallel is None else parallel.n_jobs), self._pool.total_slots
                # with a second batch for each slot, no node waits for the next one
                flow = Flow(parallel, call, limit if limit < slots else 2 * slots, self._sender())
                self._flows[id(parallel)] = flow
        return flow.submit(func, callback)

    def retrieve_result_callback(self, out: Future[list[Any]]) -> list[Any]:
        """Return the results of a batch that has ended; raise the exception of a failed call in it."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002 - the pool stays as it is
        """Stop the waiting and running batches of the `Parallel` that is aborting."""
        for flow in self._remove(lambda parallel: getattr(parallel, "_aborting", True)):
            flow.close()

    def terminate(self) -> None:
        """End a `Parallel`; the pool stays open, and keeps the large arguments it has received."""
        for flow in self._remove(lambda parallel: not getattr(parallel, "_calling", False)):
            flow.close()
        self.reset_batch_stats()

    def close(self) -> None:
        """Stop the remaining batches, such as those of a generator of results that was not read to its end."""
        for flow in self._remove(lambda _parallel: True):
            flow.close()

    def get_nested_backend(self) -> tuple[SequentialBackend, None]:
        """Return the backend for `Parallel` inside the calls: sequential, as the node's CPUs are already in use."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    # implementation --------------------------------------------------------------------------------------------------

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
        series: list[Series] = []  # created with the first batch, so that a closed pool raises there

        def send(batch: BatchedCalls) -> Sent:
            if not series:
                series.append(self._pool._series())
            items = [(self._portable(fn), args, kwargs) for fn, args, kwargs in batch.items]
            level = (self.nesting_level or 0) + 1
            return series[0].run_async(run_batch, (items, level, _versions()), name=_name(items[0][0]))

        return send

    def _portable(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as scikit-learn sends it, with its warning filters in a form that every node can load."""
        filters = getattr(fn, "warning_filters", None) if type(fn).__module__ == "sklearn.utils.parallel" else None
        if not filters:
            return fn
        if self._filters is None or self._filters[0] != filters:
            self._filters = list(filters), _Filters(filters)
        fn = copy.copy(fn)
        fn.warning_filters = self._filters[1]  # type: ignore[attr-defined]
        return fn


class Flow:
    """The batches of one call of a `Parallel`, each with a thread that sends it in its turn and waits for its results.

    joblib's callbacks, which run the user's generator of calls for the next batch, take turns by a lock of joblib's.

    Args:
        parallel, call: the `Parallel`, and the number of its call.
        limit: number of batches that may run concurrently.
        send: starts a batch.
    """

    def __init__(self, parallel: Any, call: str | None, limit: int, send: Send) -> None:
        self.parallel, self.call, self._send = parallel, call, send
        self._context = copy_context()  # of the notebook cell that shows the output
        self._sending = threading.Lock()
        self._turn = threading.Event()  # set when the last submitted batch has been sent
        self._turn.set()
        self._running: set[Sent] = set()
        self._threads = ThreadPoolExecutor(limit, thread_name_prefix="skyward-joblib")
        self._closed = False

    def submit(self, batch: BatchedCalls, callback: Callback | None) -> Sent:
        before, self._turn = self._turn, threading.Event()
        outcome = self._threads.submit(self._run, batch, before, self._turn)
        if callback is not None:
            outcome.add_done_callback(lambda ended: None if self._closed else callback(ended))
        return outcome

    def _run(self, batch: BatchedCalls, before: threading.Event, turn: threading.Event) -> list[Any]:
        before.wait()
        try:
            with self._sending:
                if self._closed:
                    raise CancelledError
                sent = self._context.run(self._send, batch)
                self._running.add(sent)
        finally:
            turn.set()
        try:
            return sent.result()
        finally:
            self._running.discard(sent)

    def close(self) -> None:
        """Cancel the running batches, and drop the waiting ones, without callbacks."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._sending:
            running = list(self._running)
        for sent in running:
            sent.cancel()


class _Filters:
    """Warning filters that unpickle to a list of those that can be loaded there."""

    def __init__(self, filters: Iterable[Any]) -> None:
        self._entries = tuple(entry for entry in map(_packed, filters) if entry is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        return restored_filters, (self._entries,)


def _packed(entry: Any) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(entry)
    except Exception:  # its category is a class that cannot be pickled: no node warns with it
        return None
    return data


def _versions() -> tuple[tuple[str, str], ...]:
    return tuple((name, sys.modules[name].__version__) for name in ("joblib", "sklearn") if name in sys.modules)


def _name(fn: Callable[..., Any]) -> str:
    name: str = getattr(fn, "__qualname__", type(fn).__name__)
    return name.rpartition("<locals>.")[2]


def _open_pool() -> OpenPool:
    remedy = "Open one around this call: `with sky.ComputePool(..., plugins=[sky.plugins.joblib()]):`."
    target: Any = active_target(lambda: f"The joblib backend {NAME!r}", remedy)
    return target  # type: ignore[no-any-return]


class parallel_on:  # noqa: N801 - a class, for exceptions that forbid changes: python/cpython#99856
    """Make `Parallel` run on this pool inside the block, in this thread; restore joblib's configuration afterwards."""

    def __init__(self, pool: OpenPool) -> None:
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
