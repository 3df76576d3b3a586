"""`ComputePool`: nodes that exist while a `with` block runs, and calls sent to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from skyward.errors import PoolClosedError, PoolError, SkywardError
from skyward.model.accelerator import Accelerator
from skyward.model.call import enter_target
from skyward.model.image import Image
from skyward.model.spec import Nodes, Worker
from skyward.model.targets import platform_of
from skyward.model.volume import Volume
from skyward.pool import settings as reading
from skyward.pool.callbacks import Callbacks
from skyward.pool.calls import Calls
from skyward.pool.clock import Clock
from skyward.pool.dispatch import Dispatcher
from skyward.pool.forking import belongs_to_this_process
from skyward.pool.functions import Functions
from skyward.pool.interrupt import uninterrupted
from skyward.pool.members import Members
from skyward.pool.node import NodeLink, PoolLink
from skyward.pool.output import Printer
from skyward.pool.places import Places
from skyward.pool.progress import Progress
from skyward.pool.ranks import ranks_of
from skyward.pool.regroup import Group
from skyward.pool.settings import Display, PoolSettings, Results
from skyward.pool.setup import WorkerSetup
from skyward.providers.base import Host, Leaving, Provider, Terms
from skyward.wire import payload

if TYPE_CHECKING:
    from skyward.plugins import Plugin
    from skyward.providers.choice import Selection

R = TypeVar("R")
T = TypeVar("T")
STOP_GRACE_S = 10.0  # for plugins to leave their hooks
INTERRUPTED_GRACE_S = 3.0  # the same after Ctrl-C, when somebody waits at a terminal, and for a pool that never opened


class ComputePool(Calls):
    """Nodes that exist from `__enter__` to `__exit__`, and the calls sent to them.

    Args:
        provider: where the nodes come from; `sky.Docker()` when None. Of a list, one gives all of them.
        selection: which of a list is tried first: the "cheapest" (the default), the "first", or by a function of
            provider and USD per hour that gives its rank, the lowest first. One that cannot is followed by the next.
        nodes: how many; a number, `(min, max)` or `Nodes`. The pool opens when `min` of them are ready (of a number,
            and where the ranks form a group: all), and more join. A node that is lost is replaced.
        accelerator: GPUs of each node: "A100", "A100:4" or an `Accelerator`; None for CPU nodes.
        plugins: frameworks to set up, in this order.
        image: what the nodes run; `sky.Image()` when None.
        concurrency: calls at once on a node; short for `worker=Worker(concurrency=...)`.
        worker: how calls run on a node.
        cpu, vcpus: limit of CPUs per node (two spellings); None for no limit. A rented machine has at least as many.
        memory, memory_gb: limit of memory per node, "32GB" or 32, of 10**9 bytes each, or "32GiB"; None for no limit.
            The same holds.
        machine: type of machine to rent, by the provider's name for it; None for one that has what is asked for.
        allocation: how to rent, such as "spot-if-available" or "on-demand"; None for the provider's default.
        max_hourly_cost: limit in USD per hour for all rented machines together; None for no limit.
        architecture: "x86_64" or "arm64"; None for this machine's.
        env: environment of the nodes at run time; not part of the image.
        secrets: names of variables of this program's environment that functions and plugins on the nodes shall have,
            or a mapping from names to values. They travel over the authenticated connection only.
        volumes, volume: buckets of S3 as directories of every node: `[sky.Volume("data", "/data")]`, or
            `{"/data": "s3://data"}` for those that are only read.
        ttl, timeout: seconds a node lives without this client (two spellings); None for the provider's default.
            A pool that is in use is never ended by it.
        provision_timeout: seconds a node may take to become ready, its image being there.
        default_compute_timeout: limit in seconds for calls that have none of their own; None for no limit.
        display: "auto" shows progress and the nodes' output, "quiet" neither.
        results: "any" takes whatever nodes return, which is code of theirs that runs here; "data" runs none of it:
            values are built-in ones, arrays, frames, tensors in main memory, and this program's own dataclasses, named
            tuples and enumerations; exceptions come as text, in a `RemoteError`. See SECURITY.md.
        verify: file with the public key (PEM) that must have signed the image in the provider's registry; None for no
            check. It is looked at before a node starts. See `skyward build --sign`.
        others: parameters of this name raise ConfigError; none is ignored.

    Raises:
        ConfigError: a value is wrong; raised here, before anything is created.
    """

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
        vcpus: float | None = None,
        memory: str | float | None = None,
        memory_gb: float | None = None,
        architecture: str | None = None,
        machine: str | None = None,
        allocation: str | None = None,
        max_hourly_cost: float | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] | Mapping[str, str] = (),
        volumes: Sequence[Volume] | Mapping[str, str] = (),
        volume: Volume | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        provision_timeout: float = 300.0,
        default_compute_timeout: float | None = None,
        display: Display = "auto",
        results: Results = "any",
        verify: str | None = None,
        **others: Any,
    ) -> None:
        reading.refuse_unknown(others, list(ComputePool.__init__.__annotations__))
        provider = reading.provider_of(provider, selection)
        mounted = reading.volumes_on(provider, volumes, volume)
        lease_s = reading.positive("ttl", reading.either("ttl", ttl, "timeout", timeout))
        settings = PoolSettings(
            provider=provider,
            nodes=Nodes.of(nodes),
            accelerator=Accelerator.of(accelerator),
            plugins=reading.plugins_of(plugins, mounted),
            image=reading.image_of(image, verify),
            worker=reading.worker_of(worker, concurrency, Accelerator.of(accelerator)),
            cpus=reading.positive("cpu", reading.either("cpu", cpu, "vcpus", vcpus)),
            memory_gb=reading.memory_of(memory, memory_gb),
            platform=platform_of(architecture),
            env=reading.env_of(env),
            secrets=reading.secrets_of(secrets, reading.plugins_of(plugins), env),
            volumes=mounted,
            lease_s=provider.lease_s if lease_s is None else lease_s,
            provision_timeout_s=reading.positive("provision_timeout", provision_timeout),
            default_timeout_s=reading.positive("default_compute_timeout", default_compute_timeout),
            display=reading.display_of(display),
            results=reading.results_of(results),
        )
        self._progress = Progress(quiet=display == "quiet")
        terms = Terms(
            machine=machine,
            allocation=allocation,
            max_hourly_cost=reading.positive("max_hourly_cost", max_hourly_cost),
            cpus=settings.cpus,
            memory_gb=settings.memory_gb,
            platform=settings.platform,
            lease_s=settings.lease_s,
            report=self._progress.report,
            leaving=self._on_leaving,
        )
        self._settings = replace(settings, provider=reading.on_terms(provider, terms))
        self.id = token_hex(4)
        self._ranks = ranks_of(self._settings.nodes.desired, self._settings.worker)
        self._running = False
        self._owner = os.getpid()
        self._leave: Callable[[], None] | None = None

    def _on_leaving(self, news: Leaving) -> None:
        self._members.leaving(news)

    # life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._running:
            raise PoolError(f"Pool {self.id} is open already; open a second ComputePool for more nodes.")
        uninterrupted.install()
        belongs_to_this_process(self)
        self._owner = os.getpid()
        self._ending = ExitStack()
        try:
            self._open()
        except BaseException as error:
            self._close(error)
            raise
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._close(error)

    def _open(self) -> None:
        settings, progress = self._settings, self._progress
        provider, count = settings.provider, settings.nodes.desired
        wanted = self._image()
        self._setup = WorkerSetup(settings, wanted)
        self._clock = Clock()
        self._callbacks = Callbacks()
        self._printer = Printer(quiet=settings.display == "quiet")
        places = Places(self.id, settings)
        self._members = members = Members(self.id, settings, places, progress.tell)
        self._dispatcher = Dispatcher(self._clock, members.kill, progress.tell)
        self._functions = Functions(only_data=settings.results == "data")
        self._dispatcher.expect(count * settings.worker.processes)
        self._group = group = Group(
            settings, lambda: members.nodes, lambda: members.replacing, self._dispatcher, self._setup, self._clock
        )
        self._running = True
        with progress.stage("image", "image: looking it up"):
            if (expect := getattr(provider, "expect", None)) is not None:
                expect(self.id, wanted, settings.cluster)
            hosts = provider.acquire(self.id, count, settings.accelerator, settings.nodes.least)

            def prepare(hosts: Sequence[Host]) -> str | None:
                return provider.prepare(hosts, wanted, settings.cluster, progress.report)

            image = prepare(hosts)
            if image is not None and wanted.bake:
                self._setup.leave_code_out()
        with progress.stage("start", f"starting {count} node{'s' * (count > 1)}"):
            link = PoolLink(
                dispatcher=self._dispatcher,
                printer=self._printer,
                callbacks=self._callbacks,
                setup=group.arrived,
                lost=group.lost,
                gone=members.gone,
                dismissed=members.dismissed,
                only_data=settings.results == "data",
            )
            members.join(link, self._dispatcher, group, prepare)
            members.start(hosts, image)
            self._set_up(members.open())
            members.opened()
        from skyward.plugins import around_client

        self._ending.enter_context(around_client(settings.plugins, self, settings.cluster))
        self._leave = enter_target(self)
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in progress.stages.items())
        ready = f"{members.count} of {count}" if members.count < count else str(count)
        progress.tell(f"pool {self.id}: {ready} node{'s' * (count > 1)} ready ({stages})")

    def _image(self) -> Image:
        from skyward.plugins import transform_all

        return transform_all(self._settings.image, self._settings.plugins, self._settings.cluster)

    def _set_up(self, nodes: Sequence[NodeLink]) -> None:
        """Enter the plugins on all workers of these nodes together, then let them take calls."""
        workers = [(node, worker) for node in nodes for worker in node.workers]
        self._setup.enter(workers, self._clock)
        for _, worker in workers:
            self._dispatcher.add(worker)
        self._group.open()

    def _close(self, cause: BaseException | None) -> None:
        """End everything, whatever state it is in; Ctrl-C waits until that is done."""
        if self._owner != os.getpid():
            return  # a process forked from the pool's own leaves the block; nothing here is its
        with uninterrupted:
            hurried = isinstance(cause, KeyboardInterrupt) or self._leave is None
            if self._running:
                self._members.stop()
                hurried |= self._group.close()
            grace_s = INTERRUPTED_GRACE_S if hurried else STOP_GRACE_S
            try:
                with self._progress.stage("stop", "stopping"), ExitStack() as last:
                    # in reverse: what stands first here is done last
                    last.callback(uninterrupted.uninstall)
                    if self._running:
                        last.callback(self._printer.stop)
                        last.callback(self._callbacks.drain)
                        last.callback(self._clock.stop)
                        last.callback(self._members.release)
                        last.callback(self._members.close, grace_s)
                        last.callback(self._dispatcher.close, PoolClosedError(f"Pool {self.id} was closed."))
                        last.push(self._ending.pop_all())
                    if self._leave is not None:
                        last.callback(self._leave)
                    self._running, self._leave = False, None
            except SkywardError as error:
                if cause is None:
                    raise
                payload.noted(cause, f"While pool {self.id} was closed after this error: {error}")

    def let_go(self) -> None:
        """In a process that was forked from the pool's own: close this process's descriptors, and nothing else."""
        self._running = False
        if hasattr(self, "_members"):
            for node in self._members.all_nodes():
                node.let_go()

    # facts -----------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the pool is open."""
        return self._running

    @property
    def concurrency(self) -> int:
        """Calls at once on each node; on each rank, where a node has several."""
        return self._settings.worker.concurrency

    @property
    def instance_count(self) -> int:
        """How many nodes the pool has now; before it is open, how many it was asked for."""
        return self._members.count if self._running else self._settings.nodes.desired

    @property
    def workers_per_instance(self) -> int:
        """Ranks on each node."""
        return self._settings.worker.ranks

    @property
    def total_slots(self) -> int:
        """Calls at once in the whole pool, on the nodes that it has now."""
        return self.concurrency * self.workers_per_instance * self.instance_count

    @property
    def stages(self) -> dict[str, float]:
        """Seconds spent in the stages of this pool so far: "image", "start", and after its end "stop"."""
        return dict(self._progress.stages)

    def current_nodes(self) -> int:
        """How many nodes take calls now; one that is being started or replaced does not."""
        # at the pool's end as well, when the plugins on the client leave before the nodes do
        return self._members.count if hasattr(self, "_members") else 0

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A pool exists in the client only and cannot be sent to its nodes: a function, or what it is given, refers "
            f"to {self!r}. Leave it out, and let the client send what comes next"
        )

    def __repr__(self) -> str:
        state = f"{self.current_nodes()} nodes" if self._running else "not open"
        return f"<ComputePool {self.id} on {self._settings.provider.name}, {state}>"
