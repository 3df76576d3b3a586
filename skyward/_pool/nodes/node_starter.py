"""Starts a node on its host and connects to it, or takes over one that an earlier client has kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skyward._pool.config import PoolConfig
from skyward._pool.named import NamedPool, NodeInUseError, Order, shape_of
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeSlot, NodeTable
from skyward._pool.nodes.pool_link import PoolLink
from skyward._pool.nodes.topology import Topology
from skyward.errors import PoolClosedError, SkywardError
from skyward.nodes.node import Host, Launch, Node
from skyward.providers.base import Allocation
from skyward.records.kept_pool import KeptNode


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
