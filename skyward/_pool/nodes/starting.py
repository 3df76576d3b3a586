"""From a host to workers that take calls: starts a node and connects to it, tells it its place, sets up its workers.

A node may also be taken over that an earlier client has kept. The set-up sends included files, secrets and plugins to
all workers at once, and waits for all together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skyward._pool.background import Timers
from skyward._pool.code.bundle import CodeBundle, bundle_paths, local_modules
from skyward._pool.collective import diagnosis
from skyward._pool.collective.diagnosis import PATIENCE_S, Blame, is_noticed
from skyward._pool.config import PoolConfig, accelerator_info
from skyward._pool.named import NamedPool, NodeInUseError, Order, shape_of
from skyward._pool.nodes.node_client import NodeClient, PoolLink
from skyward._pool.nodes.node_table import NodeSlot, NodeTable
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.services import GatherCoordinator
from skyward.errors import PluginError, PoolClosedError, SkywardError
from skyward.model.image import Image
from skyward.model.instance import SETUP, InstanceInfo, Peer
from skyward.nodes.node import Host, Launch, Node
from skyward.providers.base import Allocation
from skyward.records.kept_pool import KeptNode
from skyward.runner.config import RunnerSettings
from skyward.system import Empty, SimpleQueue, time
from skyward.system.futures import Future
from skyward.system.futures import TimeoutError as FutureTimeout
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.handshake import new_key
from skyward.wire.messages import Kind, encode

_DUMP_S = 1.5  # how long the agents of late ranks may take to find out where those are
_LATER_S = 2.0  # a gather times out so much later than the set-up it is part of, whose error says more
_Ended = tuple[int, Future[None]]  # rank, outcome


class NodeStarter:
    """Makes connected nodes of hosts.

    Args:
        pool, settings: identifier of the pool, and what it is asked to be.
        table: its nodes.
        allocation: its machines.
        link: what its nodes share with it.
        tell: prints a line that stays.
        named: its name and the nodes that are kept under it; None for a pool without one.
    """

    def __init__(
        self,
        pool: str,
        settings: PoolConfig,
        table: NodeTable,
        allocation: Allocation,
        link: PoolLink,
        tell: Callable[[str], None],
        named: NamedPool | None,
    ) -> None:
        self._pool, self._settings, self._table, self._allocation = pool, settings, table, allocation
        self._link, self._tell, self._named = link, tell, named
        self._topology = Topology(pool, settings)

    def prepare(self, hosts: Sequence[Host], image: str | None) -> None:
        """Note the first hosts, and end kept nodes that do not fit what the pool is asked to be now."""
        for index, host in enumerate(hosts):
            self._topology.put(index, host)
        if self._named is not None:
            for kept in self._named.sort({index: self._topology.launch(index, image) for index in range(len(hosts))}):
                self.discard_kept(kept)

    def start(self, slot: NodeSlot, host: Host, image: str | None) -> NodeClient:
        """Start the node of an index on a host, and connect to it.

        Raises:
            SkywardError: it cannot be started.
        """
        with self._table.changed:
            self._topology.put(slot.index, host)
            launch = self._topology.launch(slot.index, image)
        if self._named is None:
            return self._connect(slot, host, launch, host.start(launch), None)
        if (kept := self._named.take(slot.index)) is not None:
            try:
                return self._take_over(slot, host, launch, kept)
            except (NodeInUseError, PoolClosedError):
                raise
            except SkywardError as error:
                self._tell(f"node {slot.index} of pool {self._named.name} is started anew: {error}")
        started = host.start(launch)
        return self._connect(slot, host, launch, started, Order(launch.compute_pool, self._settings.lease_s))

    def announce(self) -> None:
        """Send the COMPUTE_POOL document to each node whose own has changed because another node has moved."""
        with self._table.changed:
            told = [slot.node for slot in self._table.slots if slot.node is not None and slot.node.told]
            documents = [(each, self._topology.document(each.index)) for each in told]
            moved = [(each, document) for each, document in documents if each.told != document]
            for each, document in moved:
                each.told = document
        for each, document in moved:
            each.move(document)

    def discard_kept(self, kept: KeptNode) -> None:
        """End a node that an earlier client has started and this one cannot use."""
        launch = replace(self._topology.launch(0, None), node=kept.index, key=bytes.fromhex(kept.key))
        self._allocation.adopt(launch, kept.about, kept.agent)[0].remove()

    def _take_over(self, slot: NodeSlot, host: Host, launch: Launch, kept: KeptNode) -> NodeClient:
        """Connect to a node that an earlier client has started."""
        launch = replace(launch, key=bytes.fromhex(kept.key))
        node, environment = self._allocation.adopt(launch, kept.about, kept.agent)
        order = Order(launch.compute_pool, self._settings.lease_s, environment)
        return self._connect(slot, host, launch, node, order)

    def _connect(self, slot: NodeSlot, host: Host, launch: Launch, started: Node, order: Order | None) -> NodeClient:
        """Connect to a node, by an order where the pool has a name."""
        node = NodeClient(slot.index, host, started, self._settings.worker, self._link, key=launch.key)
        node.order = order
        try:
            with self._table.changed:
                if self._table.closed.is_set():
                    raise PoolClosedError(f"Pool {self._pool} was closed.")
                slot.node = node  # from here on the end of the pool ends it
            for opened in node.open(self._settings.provision_timeout_s):
                opened.buffer = self._settings.worker.buffer
        except NodeInUseError:
            raise  # it is another client's, and so is its end
        except BaseException:
            discard(node, self._tell)
            raise
        node.told = launch.compute_pool
        if self._named is not None:
            self._named.note(
                KeptNode(
                    index=slot.index,
                    key=launch.key.hex(),
                    agent=node.agent,
                    shape=shape_of(launch),
                    about=self._allocation.about(slot.index),
                )
            )
        return node


def discard(node: NodeClient, tell: Callable[[str], None]) -> None:
    """Remove what was begun of a node, or say that its lease ends it."""
    try:
        node.discard()
    except SkywardError as error:
        tell(f"what was begun of node {node.index} could not be removed, and ends by its lease: {error}")


class Topology:
    """The hosts of a pool's nodes, by index. Used under the lock of `NodeTable`.

    Args:
        pool: identifier of the pool.
        settings: what it is asked to be.
    """

    def __init__(self, pool: str, settings: PoolConfig) -> None:
        self._pool, self._settings = pool, settings
        self._hosts: dict[int, Host] = {}
        self._head_port = 0

    def put(self, node: int, host: Host) -> None:
        """Note the host of a node; the coordination port is claimed on the head's."""
        if node == 0 and self._hosts.get(0) is not host:
            self._head_port = host.claim_port()
        self._hosts[node] = host

    def document(self, node: int) -> str:
        """The COMPUTE_POOL document of a node; peers that have no host yet are not in it."""
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
        """What the host of a node needs to start it. Each start has a key of its own, which no other node learns."""
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
            quiet=settings.display == "quiet",
            cpus=settings.cpus,
            memory_gb=settings.memory_gb,
        )


class WorkerSetup:
    """The messages that set up a pool's workers: included files, secrets, plugins. Made before any node exists.

    Files that are baked into the nodes' image are not sent, unless there is no image, see `include`.

    Args:
        settings: what the pool is asked to be.
        image: the pool's, with what its plugins make of it.

    Raises:
        ConfigError: an included file is missing, or they are too large.
        PluginError: a plugin's bootstrap is not what it should be, or cannot be pickled.
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
            self._send(local_modules(setup))  # hooks may stand in modules of the user's own
        if plugins or settings.secrets:
            self._setup = Frame(Kind.SETUP, SETUP, encode(dict(settings.secrets)), plugins)
        if not image.bake:
            self.include(image)

    def include(self, image: Image) -> None:
        """Send the files that an image includes: the nodes' image does not have them.

        Raises:
            ConfigError: one is missing, or they are too large.
        """
        self._send(bundle_paths(image.includes, image.excludes))

    def _send(self, bundle: CodeBundle) -> None:
        known = self._sent
        self._sent = sent = CodeBundle.of(dict(known.files) | dict(bundle.files), known.programs | bundle.programs)
        if sent.files:
            self._code = Frame(Kind.CODE, 0, *payload.dumps((sent.files, sent.programs)))

    def enter(self, workers: Sequence[tuple[NodeClient, WorkerClient]], clock: Timers) -> None:
        """Give these workers the files, then let all enter the plugins together: collective ones wait for each other.

        Hooks can `gather` if these are all ranks of the pool; in a worker that is set up alone that fails at once.

        Raises:
            PluginError: some were not done in time; the message names their ranks.
            The error of the first rank that failed: what its hook raised, or a WorkerLostError. One that only tells of
                another rank's end gives way to that, if it is known soon.
        """
        deadline = time.monotonic() + self._limit_s
        gather = None
        if {worker.rank for _, worker in workers} == self._ranks.keys():
            gather = GatherCoordinator(self._ranks, clock, lambda: deadline + _LATER_S - time.monotonic())
        ended: SimpleQueue[_Ended] = SimpleQueue()
        for node, worker in workers:
            worker.gather = gather
            node.setups[worker.rank].add_done_callback(_tell(worker.rank, ended, gather))
        for _, worker in workers:
            for frame in (self._code, self._setup):
                if frame is not None:
                    worker.post_frame(frame)
            worker.flush()  # if it is gone, its reader learns why and says so in its place
        if self._setup is not None:
            self._wait({worker.rank: (node, worker) for node, worker in workers}, ended, gather, deadline)

    def _wait(
        self,
        left: dict[int, tuple[NodeClient, WorkerClient]],
        ended: SimpleQueue[_Ended],
        gather: GatherCoordinator | None,
        deadline: float,
    ) -> None:
        noticed: list[BaseException] = []  # errors that follow from another one, which may still be on its way
        while left:
            try:
                rank, outcome = ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
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
    """Where each of these ranks is, as far as their agents find out."""
    deadline = time.monotonic() + _DUMP_S
    accounts = {}
    for rank, dump in {rank: node.dump(worker) for rank, (node, worker) in late.items()}.items():
        try:
            frames = diagnosis.of_dump(dump.result(max(0.0, deadline - time.monotonic())))
        except FutureTimeout:
            continue  # its node does not answer either
        if frames:
            accounts[rank] = f"was here:\n{diagnosis.excerpt(frames)}"
    return accounts


def _tell(rank: int, ended: SimpleQueue[_Ended], gather: GatherCoordinator | None) -> Callable[[Future[None]], None]:
    """A callback for the end of a rank's set-up: it tells the pool, then the ranks that wait for this one."""

    def tell(outcome: Future[None]) -> None:
        ended.put((rank, outcome))
        if gather is not None:
            gather.ended(rank, outcome.exception())

    return tell
