"""The addresses of a pool's nodes, and the COMPUTE_POOL document that tells each node its place among them."""

from __future__ import annotations

from skyward._pool.config import PoolConfig, accelerator_info
from skyward.model.instance import InstanceInfo, Peer
from skyward.nodes.node import Host, Launch
from skyward.runner.config import RunnerSettings
from skyward.wire.handshake import new_key


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
