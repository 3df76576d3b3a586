"""`ComputePool`: nodes that exist while a `with` block runs, or from `open` to `close`, and calls sent to them."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Never, NoReturn, Self, TypeVar, overload

from skyward._pool import config, signals
from skyward._pool.background import Callbacks, Timers
from skyward._pool.calls import CallRunner
from skyward._pool.code.functions import Functions
from skyward._pool.code.shared_arguments import SharedArguments
from skyward._pool.collective.worker_group import WorkerGroup
from skyward._pool.config import ADDRESS, Display, PoolConfig
from skyward._pool.console import Printer
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.display import follow_cells
from skyward._pool.facts import Facts, measure, show_to_watchers
from skyward._pool.maps import JournaledMap
from skyward._pool.named import NamedPool
from skyward._pool.nodes.manager import NodeManager
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward._pool.nodes.starting import WorkerSetup
from skyward._pool.nodes.worker_client import place_of
from skyward._pool.progress import Progress
from skyward._pool.services import Checkpoints
from skyward._pool.signals import Terminated, uninterrupted
from skyward.errors import ConfigError, PoolClosedError, PoolError, SkywardError, explained, shortened
from skyward.model.call import Call, CallsOnly
from skyward.model.image import Image
from skyward.model.resource import PoolStats
from skyward.model.spec import Accelerator, Nodes, Volume, Worker
from skyward.providers.at import places_of
from skyward.providers.base import PoolRequest, Provider
from skyward.records.pools import PoolRecord
from skyward.runtime.active_pool import enter_target
from skyward.runtime.masking import Masks
from skyward.system import threading
from skyward.system.futures import Future
from skyward.wire import payload

if TYPE_CHECKING:
    from skyward.plugins import Plugin
    from skyward.providers.fallback import Selection

R = TypeVar("R")
T = TypeVar("T")
STOP_GRACE_S = 10.0  # time for plugins to exit their hooks
_ERROR_CHARS = 2000  # longest error text in the record
INTERRUPTED_GRACE_S = 3.0  # the same after Ctrl-C, and for a pool that never opened


class ComputePool(Facts, CallsOnly):
    """Nodes that exist while a `with` block runs, or from `open` to `close`, and the calls sent to them.

    A pool that is open when the program ends, also by Ctrl-C, SIGTERM or SIGHUP, is closed first.

    Args:
        provider: where the nodes come from; `sky.Docker()` when None. From a list, one provider supplies all nodes.
        selection: which provider of a list is tried first: the "cheapest" (the default), the "first", or a function of
            provider and USD per hour that returns a rank, lowest first. If one cannot supply the nodes, the next is
            tried.
        nodes: number of nodes; a number, `(min, max)` or `Nodes`. The pool opens when `min` of them are ready (all, for
            a plain number or if the ranks form a group); the others join later. A lost node is replaced.
        accelerator: GPUs of each node: "A100", "A100:4" or an `Accelerator`; None for CPU nodes.
        plugins: frameworks to set up, in this order.
        image: image of the nodes; `sky.Image()` when None.
        concurrency: number of calls at once on a node; short for `worker=Worker(concurrency=...)`.
        worker: how calls run on a node.
        cpu: limit of CPUs per node; None for no limit. A rented machine has at least as many.
        memory: limit of memory per node, "32GB" or 32 (10**9 bytes each) or "32GiB"; None for no limit. A rented
            machine has at least as much.
        machine: type of machine to rent, by the provider's name for it; None to choose one that meets the request.
        allocation: how to rent, such as "spot-if-available" or "on-demand"; None for the provider's default.
        max_hourly_cost: limit in USD per hour for all rented machines together; None for no limit.
        budget: limit in USD for the total cost of all rented machines; None for no limit. There is a warning at 80 %.
            When it is spent, calls fail and the machines are terminated, even while this client is not connected.
        architecture: "x86_64" or "arm64"; None for this machine's.
        env: environment of the nodes at run time; not part of the image.
        secrets: names of variables of this program's environment to set for functions and plugins on the nodes, or a
            mapping from names to values. They are sent over the authenticated connection only.
        volumes: S3 buckets to mount on every node: `[sky.Volume("data", "/data")]`, or
            `{"/data": "s3://data"}` for read-only ones.
        ttl: seconds a node lives without this client; None for the provider's default. It never ends a pool that is
            in use.
        provision_timeout: seconds a node may take to become ready once its image is available.
        default_compute_timeout: time limit in seconds for calls that set none; None for no limit.
        checkpoints: directory on this machine for what functions commit with `sky.checkpoint`, also read by later
            programs that use the same directory; None for the directory of this program's run.
        display: "auto" shows progress and the nodes' output, "quiet" neither.
        name: name under which the nodes can be kept for this user's next client that opens a pool of that name.
        keep: seconds, or "30m" or "2h", that the nodes wait for that client after the block; None to end them.
        share: whether to wait while another client uses the pool; False raises a PoolError instead.
        others: any other name raises a ConfigError that suggests the closest parameter; type checkers reject it.

    Raises:
        ConfigError: a value is invalid; raised here, before anything is created.
    """

    @config.checked_names
    def __init__(
        self,
        provider: Provider | Sequence[Provider] | None = None,
        *,
        selection: Selection | None = None,
        nodes: int | tuple[int, int] | Nodes = 1,
        accelerator: Accelerator | str | None = None,
        plugins: Sequence[Plugin] = (),
        image: Image | None = None,
        concurrency: int | None = None,
        worker: Worker | None = None,
        cpu: float | None = None,
        memory: str | float | None = None,
        architecture: str | None = None,
        machine: str | None = None,
        allocation: str | None = None,
        max_hourly_cost: float | None = None,
        budget: float | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] | Mapping[str, str] = (),
        volumes: Sequence[Volume] | Mapping[str, str] = (),
        ttl: float | None = None,
        provision_timeout: float = 300.0,
        default_compute_timeout: float | None = None,
        checkpoints: str | Path | None = None,
        display: Display = "auto",
        name: str | None = None,
        keep: str | float | None = None,
        share: bool = True,
        **others: Never,  # noqa: ARG002 - for editors and type checkers
    ) -> None:
        provider = config.provider_of(provider, selection)
        mounted = config.volumes_on(provider, volumes)
        lease_s = config.positive("ttl", ttl)
        settings = PoolConfig(
            provider=provider,
            nodes=Nodes.of(nodes),
            accelerator=Accelerator.of(accelerator),
            plugins=config.plugins_of(plugins, mounted),
            image=config.image_of(image),
            worker=config.worker_of(worker, concurrency, Accelerator.of(accelerator)),
            cpus=config.positive("cpu", cpu),
            memory_gb=config.memory_of(memory),
            architecture=architecture,
            env=config.env_of(env),
            secrets=config.secrets_of(secrets, config.plugins_of(plugins), env),
            volumes=mounted,
            lease_s=provider.capabilities.default_lease_s if lease_s is None else lease_s,
            provision_timeout_s=config.positive("provision_timeout", provision_timeout),
            default_timeout_s=config.positive("default_compute_timeout", default_compute_timeout),
            checkpoints=config.folder_of("checkpoints", checkpoints),
            display=config.one_of("display", display, "auto", "quiet"),
            name=config.name_of(name, keep),
            keep_s=config.seconds_of("keep", keep),
            share=share,
        )
        self.id = token_hex(4)
        self._settings = settings
        self._progress = Progress(quiet=display == "quiet")
        self._request = PoolRequest(
            pool_id=self.id,
            nodes=settings.nodes.desired,
            at_least=settings.nodes.least,
            accelerator=settings.accelerator,
            image=settings.image,
            cpus=settings.cpus,
            memory_gb=settings.memory_gb,
            platform=settings.image.platform or settings.platform,
            lease_s=settings.lease_s,
            name=name,
            machine=machine,
            allocation=allocation,
            max_hourly_cost=config.positive("max_hourly_cost", max_hourly_cost),
            budget=config.positive("budget", budget),
            report=self._progress.report,
        )
        provider.check(self._request)
        self._ranks = settings.worker.rank_names(settings.nodes.desired)
        self._table = NodeTable(settings.nodes.desired)
        self._running = False
        self._owner = os.getpid()
        self._life = threading.RLock()  # held while the pool is closed
        self._leave: Callable[[], None] | None = None
        self._record: PoolRecord | None = None
        self._named: NamedPool | None = None

    # life ------------------------------------------------------------------------------------------------------

    _entered = False  # from `open` to `close`, even if they fail
    _takes_signals = _is_closing = False

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._close(error)

    def open(self) -> Self:
        """Start the nodes; `with` does the same and closes the pool at the end of its block.

        Raises:
            PoolError: the pool is open already.
            SkywardError: it cannot be opened; everything created for it has been removed.
        """
        signals.check_place()
        if ADDRESS in os.environ:
            from skyward._pool.description import hand_over

            hand_over(self)
        with self._life:
            if self._entered:
                raise PoolError(f"Pool {self.id} is open already; open a second ComputePool for more nodes.")
            self._entered, self._owner = True, os.getpid()
        self._takes_signals = uninterrupted.install()
        follow_cells()
        signals.look_after(self)
        self._ending = ExitStack()
        try:
            self._open()
        except BaseException as error:
            self._close(error)
            raise shortened(explained(error))  # noqa: B904 - it is the error itself
        return self

    def close(self) -> None:
        """Stop calls and remove the nodes. Do nothing if the pool is not open; wait if it is already being closed."""
        self._close(None)

    def _hurry(self, after_s: float) -> None:
        """Remove the nodes without grace after `after_s` seconds, if the pool is being closed."""
        if self._is_closing:
            self._printer.hurry()
            self._clock.after(after_s, self._manager.hurry)

    def _open(self) -> None:
        settings, progress, count = self._settings, self._progress, self._settings.nodes.desired
        wanted = self._image()
        self._table = table = NodeTable(count)
        self._setup = WorkerSetup(settings, wanted)
        if settings.name is not None:
            self._named = named = NamedPool(settings, progress.tell)
            self.id = named.enter(self.id)
        platform = wanted.platform or settings.platform
        kept = [node.about for node in self._named.untaken()] if self._named is not None else []
        request = replace(self._request, pool_id=self.id, image=wanted, platform=platform, kept=kept)
        self._clock, self._callbacks = Timers(), Callbacks()
        self._printer = Printer(
            quiet=settings.display == "quiet", widest=place_of(settings.worker, len(self._ranks) - 1)
        )
        masks = Masks(value for _, value in settings.secrets)
        self._record = record = PoolRecord(self.id, progress.tell, masks.conceal, settings.name)
        at = places_of(settings.provider)
        record.event("opening", provider=settings.provider.name, at=at, nodes=count, ranks=len(self._ranks))
        tell = record.telling(progress.tell)
        self._checkpoints = Checkpoints(settings.checkpoints)
        workers = count * settings.worker.processes
        self._dispatcher = Dispatcher(self._clock, workers, self._checkpoints.take)
        record.count(self._dispatcher.counts, self._clock)
        self._group = WorkerGroup(settings, table, self._dispatcher, self._setup, self._clock, tell)
        self._manager = manager = NodeManager(
            *(request, settings, table, self._dispatcher, self._group),
            *(self._printer, self._callbacks, tell, record, self._named),
        )
        self._calls = CallRunner(
            ranks=self._ranks,
            default_timeout_s=settings.default_timeout_s,
            functions=Functions(tell=progress.tell),
            dispatcher=self._dispatcher,
            group=self._group,
            clock=self._clock,
            callbacks=self._callbacks,
            printer=self._printer,
            tell=progress.tell,
        )
        with self._life:
            if not self._entered:
                raise PoolClosedError(f"Pool {self.id} was closed while it was being opened.")
            self._running = True
        with progress.stage("image", "image: looking it up"):
            hosts = manager.allocation.acquire()
            image = self._prepared = manager.allocation.prepare(hosts)
            if image is None and wanted.bake:
                self._setup.include(wanted)
        with progress.stage("start", f"starting {count} node{'s' * (count > 1)}"):
            manager.start(hosts, image)
            self._set_up(manager.open())
            manager.opened()
        from skyward.plugins import around_client

        self._ending.enter_context(around_client(settings.plugins, self, settings.cluster))
        self._ending.callback(show_to_watchers(self.id, table, self._dispatcher, self._clock))
        self._leave = enter_target(self)
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in progress.stages.items())
        ready = f"{table.count} of {count}" if table.count < count else str(count)
        record.event("opened", nodes=table.count, **progress.stages)
        progress.tell(f"pool {self.id}: {ready} node{'s' * (count > 1)} ready ({stages})")

    def _image(self) -> Image:
        from skyward.plugins import transform_all

        return transform_all(self._settings.image, self._settings.plugins, self._settings.cluster)

    def _set_up(self, nodes: Sequence[NodeClient]) -> None:
        """Enter the plugins on all workers of these nodes together, then start sending them calls."""
        workers = [(node, worker) for node in nodes for worker in node.workers]
        self._setup.enter(workers, self._clock)
        for _, worker in workers:
            self._dispatcher.add(worker)
        self._group.open()

    def _close(self, cause: BaseException | None) -> None:
        """End everything, whatever its state, with signals deferred until that is done."""
        if self._owner != os.getpid():
            return  # a forked process leaves the block, and owns nothing here
        with uninterrupted, self._life:
            if not self._entered:
                return
            self._entered = False
            ended = cause if isinstance(cause, Terminated) else uninterrupted.terminated
            if ended is not None:
                self._progress.tell(f"pool {self.id} is closed because of {ended.name}")
            hurried = isinstance(cause, KeyboardInterrupt) or ended is not None or self._leave is None
            dismissed = self._table.closed.is_set()
            if self._running:
                self._manager.stop()
                hurried |= self._group.close()
            keeps = self._settings.keep_s is not None and self._leave is not None and not dismissed
            try:
                self._end(INTERRUPTED_GRACE_S if hurried else STOP_GRACE_S, cause, keeps=keeps)
            except SkywardError as error:
                if cause is None:
                    raise
                payload.noted(cause, f"While pool {self.id} was closed after this error: {error}")

    def _end(self, grace_s: float, cause: BaseException | None, *, keeps: bool) -> None:
        with self._progress.stage("stop", "stopping"), ExitStack() as last:
            # runs in reverse order
            if self._takes_signals:
                last.callback(uninterrupted.uninstall)
            last.callback(self._end_record, cause)
            if self._named is not None:
                last.callback(self._named.leave)
            last.callback(signals.forget, self)
            last.callback(setattr, self, "_is_closing", False)
            if self._running:
                self._is_closing = True
                last.callback(self._printer.stop)
                last.callback(self._callbacks.drain)
                last.callback(self._clock.stop)
                last.callback(self._checkpoints.close)
                last.callback(self._manager.release)
                last.callback(self._manager.keep if keeps else self._manager.close, grace_s)
                last.callback(self._dispatcher.close, signals.closed_early(self.id))
                last.push(self._ending.pop_all())
            if self._leave is not None:
                last.callback(self._leave)
            self._running, self._leave = False, None

    def _end_record(self, cause: BaseException | None) -> None:
        record, self._record = self._record, None
        if record is not None:
            record.close("" if cause is None else f"{type(cause).__name__}: {cause}"[:_ERROR_CHARS])

    def __del__(self) -> None:
        if self._entered and self._owner == os.getpid():
            text = f"{self!r} was opened and never closed; it is closed now. Use `with`, or call `close()`."
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            signals.close_soon(self)

    def _let_go(self) -> None:
        """Close a forked process's copies of the descriptors, and do nothing else."""
        self._running = False
        if self._named is not None:
            self._named.let_go()
        for node in self._table.all_nodes():
            node.let_go()

    # calls -----------------------------------------------------------------------------------------------------

    def _run(self, call: Call[R]) -> R:
        """Run a call on one node and return its result; the same as `call >> pool`.

        Raises:
            The exception that the function raised, with the node's traceback as cause; otherwise a `TaskError`.
        """
        return self._opened().run(call)

    def _broadcast(self, call: Call[R]) -> list[R]:
        """Run a call once on every rank and return the results by rank; the same as `call @ pool`.

        There is one rank per node unless `Worker(per_node=...)` sets another number. The first error of any rank is
        raised, with a note that names node and rank; the others are stopped. If the ranks form one group, the error
        also says what the others were executing, and all are restarted before the next call. Nodes that are being
        started or replaced are waited for.

        Raises:
            PoolError: a node was lost and could not be replaced.
        """
        calls = self._opened()
        self._table.wait_whole()
        return calls.broadcast(call)

    def _run_async(self, call: Call[R]) -> Future[R]:
        """Run a call in the background; the same as `call > pool`. Cancelling the future stops the call."""
        return self._opened().run_async(call)

    def _run_parallel(self, calls: Iterable[Call[Any]], *, return_exceptions: bool = False) -> tuple[Any, ...]:
        """Run calls concurrently on whichever nodes are free; return the results in the order of the calls.

        The first error of any call is raised, and the others are stopped, unless exceptions are to be returned.
        """
        return self._opened().run_parallel(calls, return_exceptions=return_exceptions)

    def _run_stream(
        self, calls: Iterable[Call[Any]], *, ordered: bool = True, return_exceptions: bool = False
    ) -> Iterator[Any]:
        """Run calls concurrently; yield results as they arrive, or in the order of the calls if `ordered`.

        An error is raised in place of its result, unless exceptions are to be returned. The remaining calls are then
        stopped, as when the iterator is closed.
        """
        return self._opened().run_stream(calls, ordered=ordered, return_exceptions=return_exceptions)

    @overload
    def map(
        self,
        fn: Callable[[T], Any],
        items: Iterable[T],
        *,
        return_exceptions: bool = ...,
        journal: str | Path | None = ...,
        any_version: bool = ...,
    ) -> list[Any]: ...
    @overload
    def map(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *more: Iterable[Any],
        return_exceptions: bool = ...,
        journal: str | Path | None = ...,
        any_version: bool = ...,
    ) -> list[Any]: ...
    def map(
        self,
        fn: Any,
        items: Any,
        *more: Any,
        return_exceptions: bool = False,
        journal: str | Path | None = None,
        any_version: bool = False,
    ) -> list[Any]:
        """Run `fn(item)` for every item and return the results in the order of the items.

        Args:
            fn: the function, a compute function or a plain one.
            items: its arguments, one for each call.
            more: its further arguments, as for the builtin `map`: the shortest iterable ends the map.
            return_exceptions: whether to return exceptions in place of the results of calls that raise, so that all
                run. Otherwise the first is raised, with a note that names the item, and the other calls are stopped.
            journal: file that stores each result as it arrives, so that a program that is run again makes only the
                missing calls. A result is reused only for the same code of the function, item and image; a message
                reports results that are not used. Failures are not stored. See docs/sweeps.md.
            any_version: whether to use stored results also if code or image have changed, such as those of the other
                items after a bug of one was fixed.

        Raises:
            The first error of any call, or a `TaskError`, as with `run`.
            ConfigError, JournalError: the journal is another kind of file, not this user's alone, in use, or unusable.
        """
        __tracebackhide__ = True  # IPython and pytest leave such frames out of tracebacks
        calls = self._opened()
        image = self._prepared or f"{self._settings.provider.name}, Python {'.'.join(map(str, sys.version_info[:2]))}"
        if any_version and journal is None:
            raise ConfigError("any_version=True needs a journal, whose results it uses: map(..., journal=FILE).")
        kept = None if journal is None else JournaledMap(journal, any_version, image, self._progress.tell)
        return calls.map(fn, items, *more, journal=kept, return_exceptions=return_exceptions)

    def _series(self) -> SharedArguments:
        """Return a maker of background calls that share large arguments, which are sent to each node once."""
        return SharedArguments(self._opened().functions, lambda packed: self._opened().start_packed(packed))

    def _opened(self) -> CallRunner:
        """Return the pool's `CallRunner`; raise PoolError in a forked process or if the pool is not open."""
        if self._owner != os.getpid():
            raise PoolError(
                f"Pool {self.id} belongs to process {self._owner}, which opened it; process {os.getpid()} was forked "
                "from it and cannot use it. Make the calls there, open a pool of this process's own, or start "
                "processes by multiprocessing's 'spawn' and let each open its pool."
            )
        if not self._running:
            raise signals.not_open(self.id)
        return self._calls

    def stats(self) -> PoolStats:
        """Return current figures for each node: CPUs, memory, GPUs, network, calls. A node answers in 0.25 s."""
        self._opened()
        return measure(self.id, self._table, self._dispatcher)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A pool exists in the client only and cannot be sent to its nodes: a function, or what it is given, refers "
            f"to {self!r}. Leave it out, and let the client send what comes next"
        )

    def __repr__(self) -> str:
        state = f"{(n := self.current_nodes())} node{'s' * (n != 1)}" if self._running else "not open"
        return f"<ComputePool {self.id} on {self._settings.provider.name}, {state}>"
