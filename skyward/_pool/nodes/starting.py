"""What a node is started with (`Topology`), and the set-up of the workers (`WorkerSetup`).

The set-up sends included files, secrets and plugins to all workers at once, and waits for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from skyward._pool.background import Timers
from skyward._pool.code.bundle import CodeBundle, bundle_paths, local_modules
from skyward._pool.code.reloads import LoadedModules
from skyward._pool.collective import diagnosis
from skyward._pool.collective.diagnosis import PATIENCE_S, Blame, is_noticed
from skyward._pool.config import PoolConfig, accelerator_info
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import LISTEN_S
from skyward.errors import PluginError
from skyward.model.image import Image
from skyward.model.instance import SETUP, InstanceInfo, Peer
from skyward.nodes.node import Host, Launch
from skyward.runner.config import RunnerSettings
from skyward.system import Empty, SimpleQueue, time
from skyward.system.futures import Future
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.handshake import new_key
from skyward.wire.messages import Kind, encode

_Ended = tuple[int, Future[None]]  # rank, outcome


class Topology:
    """The hosts of a pool's nodes, by index. Used under the lock of `NodeTable`.

    Args:
        pool: identifier of the pool.
        settings: its parameters.
    """

    def __init__(self, pool: str, settings: PoolConfig) -> None:
        self._pool, self._settings = pool, settings
        self._hosts: dict[int, Host] = {}
        self._head_port = 0

    def put(self, node: int, host: Host) -> None:
        """Record the host of a node; for node 0, claim the coordination port on it."""
        if node == 0 and self._hosts.get(0) is not host:
            self._head_port = host.claim_port()
        self._hosts[node] = host

    def document(self, node: int) -> str:
        """Return the COMPUTE_POOL document of a node, without peers that have no host yet."""
        settings = self._settings
        count, gpus = settings.nodes.desired, settings.accelerator.count if settings.accelerator else 0
        peers = tuple(Peer(node=number, private_ip=self._hosts[number].address) for number in sorted(self._hosts))
        info = InstanceInfo(
            node=node,
            total_nodes=count,
            head_addr=self._hosts[0].address,
            head_port=self._head_port,
            accelerators=gpus,
            total_accelerators=gpus * count,
            peers=peers,
            workers_per_node=settings.worker.ranks,
            job_id=self._pool,
            accelerator=accelerator_info(settings.accelerator),
        )
        return info.to_json()

    def launch(self, node: int, image: str | None) -> Launch:
        """Return the launch parameters of a node. Each start has a new key, which no other node learns."""
        settings = self._settings
        runner = RunnerSettings(
            processes=settings.worker.processes,
            slots=settings.worker.slots,
            lease_s=settings.lease_s,
            reset="" if settings.name is None else "container" if image is not None else "directory",
        )
        return Launch(
            pool=self._pool,
            node=node,
            name=f"skyward-{self._pool}-{node}",
            image=image,
            compute_pool=self.document(node),
            runner=runner.to_json(),
            key=new_key(),
            env=dict(settings.env),
            accelerator=settings.accelerator,
            mounts=bool(settings.volumes),
            cpus=settings.cpus,
            memory_gb=settings.memory_gb,
        )


class WorkerSetup:
    """The messages that set up a pool's workers: included files, secrets, plugins. Created before any node exists.

    Files that are baked into the nodes' image are not sent, unless there is no image (see `include`).

    Args:
        settings: the pool's parameters.
        image: the pool's image, as transformed by its plugins.

    Raises:
        ConfigError: an included file is missing, or the files are too large.
        PluginError: a plugin's bootstrap is invalid or cannot be pickled.
    """

    def __init__(self, settings: PoolConfig, image: Image) -> None:
        self._names = ", ".join(plugin.name for plugin in settings.plugins)
        self._limit_s = settings.provision_timeout_s
        self._ranks = settings.worker.rank_names(settings.nodes.desired)
        self._sent = CodeBundle()
        self._setup: Frame | None = None
        self._code: Frame | None = None
        plugins: tuple[Buffer, ...] = ()
        if settings.plugins:
            from skyward.plugins import node_setup

            several = settings.worker.processes > 1
            setup = node_setup(settings.plugins, settings.cluster, several_processes=several)
            data, buffers = payload.dumps(setup)
            plugins = (data, *buffers)
            self._send(local_modules(setup, LoadedModules(base=Path.cwd())))  # hooks may be in the user's modules
        if plugins or settings.secrets:
            self._setup = Frame(Kind.SETUP, SETUP, encode(dict(settings.secrets)), plugins)
        if not image.bake:
            self.include(image)

    def include(self, image: Image) -> None:
        """Send the files that an image includes, as the nodes do not have them.

        Raises:
            ConfigError: a file is missing, or the files are too large.
        """
        self._send(bundle_paths(image.includes, image.excludes))

    def _send(self, bundle: CodeBundle) -> None:
        self._sent = sent = self._sent | bundle
        if sent.files:
            self._code = Frame(Kind.CODE, 0, *payload.dumps((sent.files, sent.programs, sent.roots)))

    def enter(self, workers: Sequence[tuple[NodeClient, WorkerClient]], clock: Timers) -> None:
        """Send these workers the files, then enter the plugins on all together: collective ones wait for each other.

        Hooks can `gather` if these are all ranks of the pool; in a worker that is set up alone, `gather` fails.

        Raises:
            PluginError: some did not finish in time; the message names their ranks.
            The error of the first rank that failed: its hook's exception, or a WorkerLostError. If it is only a
                consequence of another rank's end, that rank's error is raised instead, if it arrives soon.
        """
        deadline = time.monotonic() + self._limit_s
        gather = None
        if {worker.rank for _, worker in workers} == self._ranks.keys():
            gather = GatherCoordinator(self._ranks, clock, self._limit_s)  # this ends later than the set-up
        ended: SimpleQueue[_Ended] = SimpleQueue()
        for node, worker in workers:
            worker.gather = gather
            node.setups[worker.rank].add_done_callback(_tell(worker.rank, ended, gather))
        for _, worker in workers:
            for frame in (self._code, self._setup):
                if frame is not None:
                    worker.post_frame(frame)
            worker.flush()  # if the worker is lost, its reader sets the error of its set-up
        if self._setup is not None:
            self._wait({worker.rank: (node, worker) for node, worker in workers}, ended, gather, deadline)

    def _wait(
        self,
        left: dict[int, tuple[NodeClient, WorkerClient]],
        ended: SimpleQueue[_Ended],
        gather: GatherCoordinator | None,
        deadline: float,
    ) -> None:
        noticed: list[BaseException] = []  # consequences of another error, which may still arrive
        while left:
            try:
                rank, outcome = ended.get(timeout=max(0.0, min(LISTEN_S, deadline - time.monotonic())))
            except Empty:
                if time.monotonic() < deadline:
                    continue  # signals are handled here
                if noticed:
                    break
                raise PluginError(self._late(left, gather)) from None
            del left[rank]
            if (error := outcome.exception()) is not None:
                if not is_noticed(error):
                    raise error
                noticed.append(error)
                deadline = min(deadline, time.monotonic() + PATIENCE_S[Blame.NOTICED])
        if noticed:
            raise noticed[0]

    def _late(self, left: dict[int, tuple[NodeClient, WorkerClient]], gather: GatherCoordinator | None) -> str:
        name, waiting = gather.waiting() if gather is not None else ("", [])
        late = {rank: left[rank] for rank in sorted(left.keys() - set(waiting))}
        names = {rank: self._ranks.get(rank, str(worker)) for rank, (_, worker) in late.items()}
        text = f"The plugins ({self._names}) were not set up on {', '.join(names.values())} within {self._limit_s:g} s"
        if waiting:
            text += f"; {', '.join(self._ranks[rank] for rank in waiting)} waited there in gather({name!r})"
        text += ". Look at the late nodes' output above, or give provision_timeout= more time."
        where = diagnosis.grouped((names[rank], account) for rank, account in _accounts(late).items())
        return f"{text}\n{where}" if where else text


def _accounts(late: dict[int, tuple[NodeClient, WorkerClient]]) -> dict[int, str]:
    """Return descriptions of these ranks' stacks, as far as their agents answer."""
    dumps = diagnosis.collected({rank: node.dump(worker) for rank, (node, worker) in late.items()})
    frames = {rank: diagnosis.of_dump(text) for rank, text in dumps.items()}
    return {rank: f"was here:\n{diagnosis.excerpt(each)}" for rank, each in frames.items() if each}


def _tell(rank: int, ended: SimpleQueue[_Ended], gather: GatherCoordinator | None) -> Callable[[Future[None]], None]:
    """Return a callback for the end of a rank's set-up, which informs the pool, then ranks waiting in a gather."""

    def tell(outcome: Future[None]) -> None:
        ended.put((rank, outcome))
        if gather is not None:
            gather.ended(rank, outcome.exception())

    return tell
