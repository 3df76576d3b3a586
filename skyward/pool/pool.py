"""`ComputePool`: nodes that exist while a `with` block runs, and calls sent to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self, TypeVar

from skyward.errors import PoolClosedError, PoolError, SkywardError, WorkerLostError
from skyward.model.accelerator import Accelerator
from skyward.model.call import Call, enter_target
from skyward.model.image import Image
from skyward.model.instance import InstanceInfo, Peer
from skyward.model.spec import Nodes, Worker
from skyward.pool import settings as reading
from skyward.pool.clock import Clock
from skyward.pool.dispatch import Dispatcher
from skyward.pool.functions import Functions
from skyward.pool.gang import Gang
from skyward.pool.gathering import Gathering
from skyward.pool.interrupt import uninterrupted
from skyward.pool.node import BEAT_S, NodeLink, PoolLink
from skyward.pool.output import Printer
from skyward.pool.progress import Progress
from skyward.pool.ranks import ranks_of
from skyward.pool.regroup import Group
from skyward.pool.settings import Display, PoolSettings
from skyward.pool.setup import WorkerSetup
from skyward.pool.shared import Packed, Series
from skyward.pool.task import CallFuture, Latch, PlainCall, Task
from skyward.pool.worker import WorkerLink
from skyward.providers.base import Host, Launch, Provider, Terms
from skyward.runner.config import RunnerSettings
from skyward.wire import payload
from skyward.wire.handshake import new_key

if TYPE_CHECKING:
    from skyward.plugins import Plugin
    from skyward.providers.choice import Selection

R = TypeVar("R")
T = TypeVar("T")
STOP_GRACE_S = 10.0  # for plugins to leave their hooks
INTERRUPTED_GRACE_S = 3.0  # the same after Ctrl-C, when somebody waits at a terminal, and for a pool that never opened
_AT_ONCE = 16  # nodes started at the same time


class ComputePool:
    """Nodes that exist from `__enter__` to `__exit__`, and the calls sent to them.

    Args:
        provider: where the nodes come from; `sky.Docker()` when None. Of a list, one gives all of them.
        selection: which of a list is tried first: the "cheapest" (the default), the "first", or by a function of
            provider and USD per hour that gives its rank, the lowest first. One that cannot is followed by the next.
        nodes: how many; a number, `(min, max)` or `Nodes`. All of `desired`, of a tuple `max`, are started and awaited.
        accelerator: GPUs of each node: "A100", "A100:4" or an `Accelerator`; None for CPU nodes.
        plugins: frameworks to set up, in this order.
        image: what the nodes run; `sky.Image()` when None.
        concurrency: calls at once on a node; short for `worker=Worker(concurrency=...)`.
        worker: how calls run on a node.
        cpu, vcpus: limit of CPUs per node (two spellings); None for no limit. A rented machine has at least as many.
        memory, memory_gb: limit of memory per node, "32GB" or 32; None for no limit. The same holds.
        machine: type of machine to rent, by the provider's name for it; None for one that has what is asked for.
        allocation: how to rent, such as "spot-if-available" or "on-demand"; None for the provider's default.
        max_hourly_cost: limit in USD per hour for all rented machines together; None for no limit.
        architecture: "x86_64" or "arm64"; None for this machine's.
        env: environment of the nodes at run time; not part of the image.
        secrets: names of variables of this program's environment that functions and plugins on the nodes shall have,
            or a mapping from names to values. They travel over the authenticated connection only.
        ttl, timeout: seconds a node lives without this client (two spellings); None for the provider's default.
            A pool that is in use is never ended by it.
        provision_timeout: seconds a node may take to become ready, its image being there.
        default_compute_timeout: limit in seconds for calls that have none of their own; None for no limit.
        display: "auto" shows progress and the nodes' output, "quiet" neither.
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
        ttl: float | None = None,
        timeout: float | None = None,
        provision_timeout: float = 300.0,
        default_compute_timeout: float | None = None,
        display: Display = "auto",
        **others: Any,
    ) -> None:
        reading.refuse_unknown(others, list(ComputePool.__init__.__annotations__))
        provider = reading.provider_of(provider, selection)
        lease_s = reading.positive("ttl", reading.either("ttl", ttl, "timeout", timeout))
        settings = PoolSettings(
            provider=provider,
            nodes=Nodes.of(nodes),
            accelerator=Accelerator.of(accelerator),
            plugins=reading.plugins_of(plugins),
            image=reading.image_of(image),
            worker=reading.worker_of(worker, concurrency, Accelerator.of(accelerator)),
            cpus=reading.positive("cpu", reading.either("cpu", cpu, "vcpus", vcpus)),
            memory_gb=reading.memory_of(memory, memory_gb),
            platform=reading.platform_of(architecture),
            env=reading.env_of(env),
            secrets=reading.secrets_of(secrets, reading.plugins_of(plugins), env),
            lease_s=provider.lease_s if lease_s is None else lease_s,
            provision_timeout_s=reading.positive("provision_timeout", provision_timeout),
            default_timeout_s=reading.positive("default_compute_timeout", default_compute_timeout),
            display=reading.display_of(display),
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
        )
        self._settings = replace(settings, provider=reading.on_terms(provider, terms))
        self.id = token_hex(4)
        self._ranks = ranks_of(self._settings.nodes.desired, self._settings.worker)
        self._nodes: list[NodeLink] = []
        self._opened: list[tuple[NodeLink, WorkerLink]] = []
        self._running = False
        self._leave: Callable[[], None] | None = None

    # life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._running:
            raise PoolError(f"Pool {self.id} is open already; open a second ComputePool for more nodes.")
        uninterrupted.install()
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
        self._setup = WorkerSetup(settings)
        self._key = new_key()
        self._clock = Clock()
        self._printer = Printer(quiet=settings.display == "quiet")
        self._dispatcher = Dispatcher(self._clock, self._kill)
        self._functions = Functions()
        self._dispatcher.expect(count * settings.worker.processes)
        self._group = Group(settings, lambda: self._nodes, self._dispatcher, self._setup, self._clock)
        self._running = True
        with progress.stage("image", "image: looking it up"):
            hosts = provider.acquire(self.id, count, settings.accelerator)
            wanted = self._image()
            image = provider.prepare(hosts, wanted, settings.cluster, progress.report)
            if image is not None and wanted.bake:
                self._setup.leave_code_out()
        with progress.stage("start", f"starting {count} node{'s' * (count > 1)}"):
            self._start(hosts, image)
            self._set_up_all()
            self._beat()
        from skyward.plugins import around_client

        self._ending.enter_context(around_client(settings.plugins, self, settings.cluster))
        self._leave = enter_target(self)
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in progress.stages.items())
        progress.tell(f"pool {self.id}: {count} node{'s' * (count > 1)} ready ({stages})")

    def _image(self) -> Image:
        from skyward.plugins import transform_all

        return transform_all(self._settings.image, self._settings.plugins, self._settings.cluster)

    def _start(self, hosts: Sequence[Host], image: str | None) -> None:
        """Start all nodes at once; on the first failure, and on Ctrl-C, end them all and raise it."""
        settings, head_port = self._settings, hosts[0].claim_port()
        with ThreadPoolExecutor(min(_AT_ONCE, len(hosts)), thread_name_prefix="skyward-start") as threads:
            starts = [
                threads.submit(self._start_node, index, host, self._launch(index, hosts, head_port, image))
                for index, host in enumerate(hosts)
            ]
            try:
                for start in as_completed(starts):
                    start.result()
            except BaseException:
                with uninterrupted:
                    settings.provider.release(self.id)  # what is not there any more is waited for by no thread
                    threads.shutdown(wait=True, cancel_futures=True)
                raise
        self._nodes.sort(key=lambda node: node.index)

    def _launch(self, index: int, hosts: Sequence[Host], head_port: int, image: str | None) -> Launch:
        settings = self._settings
        gpus = settings.accelerator.count if settings.accelerator else 0
        place = InstanceInfo(
            node=index,
            total_nodes=len(hosts),
            head_addr=hosts[0].address,
            head_port=head_port,
            accelerators=gpus,
            total_accelerators=gpus * len(hosts),
            peers=tuple(Peer(node=number, private_ip=host.address) for number, host in enumerate(hosts)),
            workers_per_node=settings.worker.ranks,
            job_id=self.id,
            accelerator=reading.accelerator_info(settings.accelerator),
        )
        runner = RunnerSettings(
            processes=settings.worker.processes, slots=settings.worker.slots, lease_s=settings.lease_s
        )
        return Launch(
            pool=self.id,
            node=index,
            name=f"skyward-{self.id}-{index}",
            image=image,
            compute_pool=place.to_json(),
            runner=runner.to_json(),
            key=self._key,
            env=dict(settings.env),
            accelerator=settings.accelerator,
            cpus=settings.cpus,
            memory_gb=settings.memory_gb,
        )

    def _start_node(self, index: int, host: Host, launch: Launch) -> None:
        worker = self._settings.worker
        link = PoolLink(self._key, self._dispatcher, self._printer, self._group.arrived, self._group.lost)
        node = NodeLink(index, host.start(launch), worker, link)
        self._nodes.append(node)  # from here on _close ends it
        for opened in node.open(self._settings.provision_timeout_s):
            opened.buffer = worker.buffer
            self._opened.append((node, opened))

    def _set_up_all(self) -> None:
        """Enter the plugins on all workers together, then let them take calls."""
        self._setup.enter(self._opened, self._clock)
        for _, worker in self._opened:
            self._dispatcher.add(worker)
        self._group.open()

    def _beat(self) -> None:
        for node in self._nodes:
            node.beat()
        self._clock.after(BEAT_S, self._beat)

    def _kill(self, worker: WorkerLink) -> None:
        self._nodes[worker.node].kill(worker)

    def _close(self, cause: BaseException | None) -> None:
        """End everything, whatever state it is in; Ctrl-C waits until that is done."""
        with uninterrupted:
            hurried = isinstance(cause, KeyboardInterrupt) or self._leave is None
            hurried |= self._running and self._group.close()
            grace_s = INTERRUPTED_GRACE_S if hurried else STOP_GRACE_S
            try:
                with self._progress.stage("stop", "stopping"), ExitStack() as last:
                    # in reverse: what stands first here is done last
                    last.callback(uninterrupted.uninstall)
                    if self._running:
                        last.callback(self._printer.stop)
                        last.callback(self._clock.stop)
                        last.callback(self._settings.provider.release, self.id)
                        last.callback(self._close_nodes, grace_s)
                        last.callback(self._dispatcher.close, PoolClosedError(f"Pool {self.id} was closed."))
                        last.push(self._ending.pop_all())
                    if self._leave is not None:
                        last.callback(self._leave)
                    self._running, self._leave = False, None
            except SkywardError as error:
                if cause is None:
                    raise
                cause.add_note(f"While pool {self.id} was closed after this error: {error}")

    def _close_nodes(self, grace_s: float) -> None:
        if not self._nodes:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(self._nodes)), thread_name_prefix="skyward-stop") as threads:
            ends = [threads.submit(node.close, grace_s) for node in self._nodes]
        self._nodes, self._opened = [], []
        for end in ends:
            end.result()

    # calls -----------------------------------------------------------------------------------------------------

    def run(self, call: Call[R]) -> R:
        """Run a call on one node and return what it returns; the same as `call >> pool`.

        Raises:
            The exception the function raised, with the traceback of its node as cause; else a `TaskError`.
        """
        result: R = self._run_all([self._task(call)])[0]
        return result

    def broadcast(self, call: Call[R]) -> list[R]:
        """Run a call once on every rank; the index of the list is the rank. The same as `call @ pool`.

        There is one rank per node, unless `Worker(per_node=...)` says otherwise. The first error of any rank is raised,
        with a note that names node and rank; the others are stopped. Where the ranks form one group, the error also
        says where the others were, and all are started afresh before the next call.
        """
        self._check_open()
        gone = next((node for node in self._nodes if node.gone is not None), None)
        if gone is not None and gone.gone is not None:
            raise PoolError(f"A call for every node cannot be run: node {gone.index} is gone ({gone.gone.text}).")
        first = self._task(call)
        if len(self._ranks) > 1 and (self._group.collective or first.function.collective):
            return self._run_together(first)
        return self._run_all(self._parts(first))

    def _parts(self, call: Task) -> list[Task]:
        """A call as each of the ranks gets it."""
        parts = [call.copy(self._dispatcher.next_id()) for _ in self._ranks]
        gathering = Gathering(self._ranks, self._clock) if len(parts) > 1 else None
        for rank, part in zip(self._ranks, parts, strict=True):
            part.pin, part.gathering = rank, gathering
        return parts

    def run_async(self, call: Call[R]) -> Future[R]:
        """Run a call in the background; the same as `call > pool`. Cancelling the future stops the call."""
        return self._in_background(self._task(call))

    def series(self) -> Series:
        """Calls in the background that have large arguments in common, each of which is sent to a node once."""
        self._check_open()
        return Series(self._functions, self._start_packed)

    def _start_packed(self, packed: Packed) -> Future[Any]:
        self._check_open()
        ident, timeout = self._dispatcher.next_id(), self._settings.default_timeout_s
        task = Task(ident, packed.function, packed.data, packed.buffers, timeout, 0)
        task.shared = packed.values
        return self._in_background(task)

    def _in_background(self, task: Task) -> Future[Any]:
        future: CallFuture[Any] = CallFuture(lambda: self._dispatcher.cancel(task))
        task.on_done(future.take)
        with uninterrupted:
            self._dispatcher.submit([task])
        return future

    def run_parallel(self, calls: Iterable[Call[Any]]) -> tuple[Any, ...]:
        """Run calls at once, on whichever nodes are free; results in the order of the calls.

        The first error of any of them is raised; the others are stopped.
        """
        return tuple(self._run_all([self._task(call) for call in calls]))

    def run_stream(self, calls: Iterable[Call[Any]], *, ordered: bool = True) -> Iterator[Any]:
        """Run calls at once; yields results as they arrive, in the order of the calls if `ordered`.

        An error is raised in its result's place, and the rest is stopped; so it is when the iterator is closed.
        """
        tasks = [self._task(call) for call in calls]
        arrived: SimpleQueue[Task] = SimpleQueue()
        for task in tasks:
            task.on_done(arrived.put)
        with uninterrupted:
            self._dispatcher.submit(tasks)
        return self._yield_results(tasks, arrived, ordered)

    def map(self, fn: Callable[[T], Any], items: Iterable[T]) -> list[Any]:
        """Run `fn(item)` for every item; results in the order of the items. `fn` may be a compute function or plain."""
        plain: Callable[..., Any] = getattr(fn, "fn", fn)
        timeout, retries = getattr(fn, "timeout", None), getattr(fn, "retries", 0)
        return list(self.run_parallel(PlainCall(plain, (item,), {}, timeout, retries) for item in items))

    def _task(self, call: Call[Any]) -> Task:
        self._check_open()
        function = self._functions.get(call.fn)
        data, buffers = payload.dumps_arguments(call.args, call.kwargs, of=function.name)
        timeout = call.timeout if call.timeout is not None else self._settings.default_timeout_s
        return Task(self._dispatcher.next_id(), function, data, buffers, timeout, call.retries)

    def _run_all(self, tasks: list[Task]) -> list[Any]:
        """Run tasks to their end; on the first error, and on Ctrl-C, stop the rest."""
        latch = Latch(len(tasks))
        for task in tasks:
            task.on_done(latch if task.gathering is None else task.gathering.then(latch))
        try:
            with uninterrupted:
                self._dispatcher.submit(tasks)
            latch.wait()
            self._printer.drain()
            if latch.first_failed is not None:
                latch.first_failed.value()
            return [task.value() for task in tasks]
        except BaseException:
            with uninterrupted:
                self._cancel(tasks)
            raise

    def _run_together(self, call: Task) -> list[Any]:
        """Run a call on all ranks, which fail together; again if one of them is lost and its function allows that."""
        for retries_left in range(call.retries, -1, -1):
            tasks = self._parts(call)
            error = Gang(tasks, self._ranks, self._dispatcher, self._group).run()
            self._printer.drain()
            if error is None:
                return [task.value() for task in tasks]
            if not (retries_left and isinstance(error, WorkerLostError)):
                raise error
        raise AssertionError("the last run returns or raises")

    def _cancel(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if not task.done or task.stream is not None:
                self._dispatcher.cancel(task)

    def _yield_results(self, tasks: list[Task], arrived: SimpleQueue[Task], ordered: bool) -> Iterator[Any]:
        left = dict.fromkeys(tasks)  # whose results have not been handed out
        try:
            for task in tasks:
                if ordered:
                    while not task.done:
                        arrived.get()
                else:
                    task = arrived.get()
                self._printer.drain()
                del left[task]
                yield task.value()
        finally:
            with uninterrupted:
                self._cancel(left)

    def _check_open(self) -> None:
        if not self._running:
            raise PoolClosedError(f"Pool {self.id} is not open; use `with sky.ComputePool(...) as pool:`.")

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
        """How many nodes the pool was asked for."""
        return self._settings.nodes.desired

    @property
    def workers_per_instance(self) -> int:
        """Ranks on each node."""
        return self._settings.worker.ranks

    @property
    def total_slots(self) -> int:
        """Calls at once in the whole pool."""
        return self.concurrency * self.workers_per_instance * self.instance_count

    @property
    def stages(self) -> dict[str, float]:
        """Seconds spent in the stages of this pool so far: "image", "start", and after its end "stop"."""
        return dict(self._progress.stages)

    def current_nodes(self) -> int:
        """How many nodes are alive."""
        return sum(node.gone is None for node in self._nodes)

    def __repr__(self) -> str:
        state = f"{self.current_nodes()} nodes" if self._running else "not open"
        return f"<ComputePool {self.id} on {self._settings.provider.name}, {state}>"
