"""Client side of named pools: exclusive use, takeover of kept nodes, and handover to the next client.

`NamedPool` manages the lock and the record; `take` requests a node from its agent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from skyward._pool.config import PoolConfig
from skyward._version import __version__
from skyward.errors import PoolError, WireError
from skyward.nodes.node import Launch
from skyward.records.kept_pool import KeptNode, KeptPool, PoolLock, pool_folder
from skyward.system import threading, time
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import Kind, decode, encode

_held: set[str] = set()  # names that this process holds
_MOMENT_S, _LOOKS = 0.05, 4  # retries, since `skyward down` and the cleanup of other pools hold it briefly
_LATE_S = 5.0  # how long after its deadline a kept node may still be shutting down


class NamedPool:
    """Lock of this client on a pool's name, and the record of the pool.

    Args:
        settings: the pool's parameters; `name` must be set.
        tell: prints a permanent line.
    """

    def __init__(self, settings: PoolConfig, tell: Callable[[str], None]) -> None:
        assert settings.name is not None
        self.name, self.keep_s, self._share, self._tell = settings.name, settings.keep_s, settings.share, tell
        self._provider = settings.provider
        self._folder = pool_folder(self.name)
        self._lock = PoolLock(self._folder)
        self._changed = threading.Lock()  # guards the record
        self._record: KeptPool
        self._kept: dict[int, KeptNode] = {}  # kept nodes that have not been taken over yet

    def enter(self, new_id: str) -> str:
        """Lock the name and return the identifier of the pool: that of the kept pool, if any, otherwise `new_id`.

        Raises:
            PoolError: another client uses the pool and `share` is false, this process has it open already, or the pool
                is kept on another provider.
            SkywardError: nodes that a killed client has left there cannot be ended.
        """
        self._claim()
        try:
            record = self._kept_pool() or KeptPool(name=self.name, pool=new_id, provider=repr(self._provider))
        except BaseException:
            self.leave()
            raise
        self._record = replace(record, until=None)
        self._kept = {node.index: node for node in self._record.nodes}
        self._record.write(self._folder)
        return self._record.pool

    def _kept_pool(self) -> KeptPool | None:
        """Return the pool that the previous client has kept; end what it has left if it was killed."""
        record = KeptPool.read(self._folder)
        if record is None:
            return None
        if record.provider != repr(self._provider):
            raise PoolError(
                f"Pool {self.name!r} is kept on {record.provider}, and this program asks for {self._provider}. End it "
                f"with `skyward down {self.name}`, or use another name."
            )
        if record.until is not None:
            if time.time() > record.until + _LATE_S:
                ended = time.strftime("%H:%M", time.localtime(record.until))
                self._tell(f"pool {self.name} was kept until {ended}, and its nodes have ended: starting others")
            return record
        self._tell(f"pool {self.name}: the program that had it was killed; ending its nodes and starting others")
        self._provider.destroy(record.pool)
        return None

    def _claim(self) -> None:
        if self.name in _held:
            raise PoolError(f"This process has pool {self.name!r} open already; a pool is one client's at a time.")
        now = time.strftime("%H:%M:%S")
        holder = f"{Path(sys.argv[0] or 'python').name} (process {os.getpid()}, since {now})"
        for _ in range(_LOOKS):
            if self._lock.acquire(wait=False, holder=holder):
                break
            time.sleep(_MOMENT_S)
        else:
            other = self._lock.holder() or "another client"
            if not self._share:
                raise PoolError(f"Pool {self.name!r} is in use by {other}, and share=False does not wait for it.")
            self._tell(f"pool {self.name} is in use by {other}; waiting for it")
            self._lock.acquire(wait=True, holder=holder)
        _held.add(self.name)

    def sort(self, wanted: Mapping[int, Launch]) -> list[KeptNode]:
        """Select the nodes to take over, by the launch wanted for each index; return those that cannot be used."""
        shapes = {index: shape_of(launch) for index, launch in wanted.items()}
        unfit = [node for node in self._kept.values() if node.shape != shapes.get(node.index)]
        why = set[str]()
        for node in unfit:
            del self._kept[node.index]
            now = shapes.get(node.index, node.shape)
            why |= {name for name in node.shape.keys() | now.keys() if node.shape.get(name) != now.get(name)}
        if why:
            listed = ", another ".join(sorted(why))
            self._tell(f"pool {self.name}: its nodes are replaced, since they have another {listed}")
        return unfit

    def take(self, index: int) -> KeptNode | None:
        """Remove and return the kept node with this index; None if there is none to take over."""
        return self._kept.pop(index, None)

    def note(self, node: KeptNode) -> None:
        """Record a node that has been started or taken over."""
        with self._changed:
            self._record = self._record.with_node(node)
            self._record.write(self._folder)

    def keep(self, indexes: set[int]) -> None:
        """Record these nodes as kept for the next client, and release the name."""
        assert self.keep_s is not None
        until = time.time() + self.keep_s
        with self._changed:
            nodes = tuple(node for node in self._record.nodes if node.index in indexes)
            self._record = replace(self._record, until=until, nodes=nodes)
            self._record.write(self._folder)
        count, at = f"{len(nodes)} node{'s' * (len(nodes) > 1)}", time.strftime("%H:%M:%S", time.localtime(until))
        self._tell(f"pool {self.name}: {count} kept until {at}; `skyward down {self.name}` ends it")
        self.leave()

    def untaken(self) -> list[KeptNode]:
        """Return the kept nodes that have not been taken over."""
        return list(self._kept.values())

    def forget(self) -> None:
        """Remove the record of a pool that has ended, and release the name."""
        if self._lock.is_held:
            self._lock.remove()
            self.leave()

    def leave(self) -> None:
        """Release the name. Do nothing the second time."""
        if self._lock.is_held:
            _held.discard(self.name)
            self._lock.release()

    def let_go(self) -> None:
        """Close a forked process's copy of the lock."""
        _held.discard(self.name)
        self._lock.let_go()


def shape_of(launch: Launch) -> dict[str, str]:
    """Return the properties of a node that cannot change while it runs, by their names in messages."""
    runner = json.loads(launch.runner)
    shape = {
        "worker": f"{runner['processes']} x {runner['slots']}",
        "accelerator": repr(launch.accelerator),
        "limit of CPUs": repr(launch.cpus),
        "limit of memory": repr(launch.memory_gb),
        "use of volumes": repr(launch.mounts),
        "version of skyward": __version__,
    }
    if launch.image is not None:
        values = json.dumps(sorted(launch.env.items()))
        return {**shape, "image": launch.image, "environment": sha256(values.encode()).hexdigest()}
    return {**shape, "interpreter": f"{sys.executable} {sys.version}"}


def take(agent: Connection, order: dict[str, Any], timeout_s: float) -> list[tuple[int, str]]:
    """Take over a node; return generation and address of each of its workers, which no other client has used.

    Messages of the agent before its answer were meant for the previous client and are dropped.

    Args:
        agent: the connection to its agent.
        order: its COMPUTE_POOL document, the seconds that it lives without this client, and the whole environment of
            its workers, None to leave that unchanged.
        timeout_s: how long its workers may take to start.

    Raises:
        WireError: it is another client's, it ends, or does not answer in time.
    """
    agent.post(Frame(Kind.TAKE, 0, encode(order)))
    late = threading.Timer(timeout_s, agent.stop_reading)
    late.daemon = True
    late.start()
    try:
        while frames := agent.receive():
            for frame in frames:
                if frame.kind == Kind.TAKEN:
                    answer = decode(frame.head)
                    if "refused" in answer:
                        raise WireError(f"It cannot be taken over: {answer['refused']}.")
                    return [(int(generation), str(address)) for generation, address in answer["workers"]]
    finally:
        late.cancel()
    raise WireError(f"Its agent did not hand it over to this client: it ended, or took longer than {timeout_s:g} s.")
