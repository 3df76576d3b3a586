"""A pool with a name, as its client sees it: who may have it, what is there of it, and what the next client is left.

`NamedPool` holds the claim and the record; `Order`, `take` and `keeping` are what an agent is asked for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from skyward._pool.config import PoolConfig
from skyward._version import __version__
from skyward.errors import PoolError, WireError
from skyward.nodes.node import Launch
from skyward.records.kept_pool import Holder, KeptNode, KeptPool, PoolLock, pool_folder
from skyward.system import threading, time
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import Kind, decode, encode

_held: set[str] = set()  # names that this process has
_MOMENT_S, _LOOKS = 0.05, 4  # `skyward down` and the sweep of what is left of other pools have it for a moment
_LATE_S = 5.0  # how long after its time a kept node may still be ending
PATIENCE_S = 10.0  # how long an agent may take to end workers that do not end by themselves


class NamedPool:
    """The claim of this client on a pool's name, and the record of the pool.

    Args:
        settings: what the pool is asked to be; with a name.
        tell: prints a line that stays.
    """

    def __init__(self, settings: PoolConfig, tell: Callable[[str], None]) -> None:
        assert settings.name is not None
        self.name, self.keep_s, self._share, self._tell = settings.name, settings.keep_s, settings.share, tell
        self._provider, self._lease_s = repr(settings.provider), settings.lease_s
        self._folder = pool_folder(self.name)
        self._lock = PoolLock(self._folder)
        self._changed = threading.Lock()  # guards the record
        self._record: KeptPool
        self._kept: dict[int, KeptNode] = {}  # those that are there, and not taken over yet
        self._before: KeptPool | None = None
        self._holds = False

    def enter(self, new_id: str) -> str:
        """Claim the name; the identifier of the pool: `new_id`, unless nodes of it are there.

        Raises:
            PoolError: another client has it and it is not shared, or this process has it, or it runs elsewhere.
        """
        self._claim()
        record = KeptPool.read(self._folder)
        if record is not None and record.provider != self._provider:
            self.leave()
            raise PoolError(
                f"Pool {self.name!r} is kept on {record.provider}, and this program asks for {self._provider}. End it "
                f"with `skyward down {self.name}`, or use another name."
            )
        self._before = record
        fresh = KeptPool(name=self.name, pool=new_id, provider=self._provider)
        self._record = replace(record or fresh, until=None)
        if record is not None and record.until is not None and time.time() > record.until + _LATE_S:
            ended = time.strftime("%H:%M", time.localtime(record.until))
            self._tell(f"pool {self.name} was kept until {ended}, and its nodes have ended: starting others")
        self._kept = {node.index: node for node in self._record.nodes}
        self._record.write(self._folder)
        return self._record.pool

    def _claim(self) -> None:
        if self.name in _held:
            raise PoolError(f"This process has pool {self.name!r} open already; a pool is one client's at a time.")
        now = time.strftime("%H:%M:%S")
        holder = Holder(pid=os.getpid(), program=Path(sys.argv[0] or "python").name, since=now)
        if not self._try(holder):
            other = self._lock.holder() or "another client"
            if not self._share:
                raise PoolError(f"Pool {self.name!r} is in use by {other}, and share=False does not wait for it.")
            self._tell(f"pool {self.name} is in use by {other}; waiting for it")
            self._lock.acquire(wait=True, holder=holder)
        self._holds = True
        _held.add(self.name)

    def _try(self, holder: Holder) -> bool:
        """Claim the name without waiting for a client that has it."""
        for _ in range(_LOOKS):
            if self._lock.acquire(wait=False, holder=holder):
                return True
            time.sleep(_MOMENT_S)
        return False

    def sort(self, wanted: Mapping[int, Launch]) -> list[KeptNode]:
        """Choose which nodes are taken over, by what is wanted of each; those that cannot be used."""
        unfit, why = [], dict[str, None]()
        for index, node in list(self._kept.items()):
            launch = wanted.get(index)
            if launch is None:
                unfit.append(self._kept.pop(index))
            elif other := sorted(_differences(node.shape, shape_of(launch))):
                unfit.append(self._kept.pop(index))
                why.update(dict.fromkeys(other))
        if why:
            self._tell(f"pool {self.name}: its nodes are replaced, since they have another {', another '.join(why)}")
        return unfit

    def take(self, index: int) -> KeptNode | None:
        """The node with this index that is there to be taken over, once; None if there is none."""
        return self._kept.pop(index, None)

    def note(self, node: KeptNode) -> None:
        """Record a node that has been started or taken over."""
        with self._changed:
            self._record = self._record.with_node(node)
            self._record.write(self._folder)

    def keep(self, indexes: set[int]) -> None:
        """Leave these nodes to the next client, and let it come."""
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
        """The nodes that are there and were not taken over, because the pool could not be opened."""
        return list(self._kept.values())

    def left_s(self) -> float:
        """For how many seconds the nodes that are there are kept if nobody takes them over."""
        until = self._before.until if self._before is not None else None
        return self._lease_s if until is None else max(1.0, until - time.time())

    def restore(self) -> None:
        """Leave everything to the next client as it was found, because the pool could not be opened."""
        if self._before is not None:
            self._before.write(self._folder)
        else:
            self._lock.remove()
        self.leave()

    def forget(self) -> None:
        """Remove the record of a pool that has ended, and let the next client come."""
        if self._holds:
            self._lock.remove()
            self.leave()

    def leave(self) -> None:
        """Let the next client come. Does nothing the second time."""
        if self._holds:
            self._holds = False
            _held.discard(self.name)
            self._lock.release()

    def let_go(self) -> None:
        """In a forked process: close its copy of the claim."""
        self._holds = False
        _held.discard(self.name)
        self._lock.let_go()


def shape_of(launch: Launch) -> dict[str, str]:
    """What a node is started with and cannot be changed while it runs, by what people call it."""
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
    return {**shape, "interpreter": f"{sys.executable} {sys.version}", "state of skyward's files": _own_files()}


def _own_files() -> str:
    """When the files that nodes run were last changed: a process of the node before has them in memory."""
    package = Path(__file__).parents[1]
    files = (
        path for name in ("runner", "runtime", "wire", "model", "system") for path in (package / name).glob("*.py")
    )
    return str(max(path.stat().st_mtime_ns for path in files))


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


class NodeInUseError(PoolError):
    """Another client has the node."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a node is to be for its next client.

    Attributes:
        document: its COMPUTE_POOL document.
        lease_s: seconds that it lives without this client.
        environment: the whole environment of its workers; None for the one that they have.
    """

    document: str
    lease_s: float
    environment: Mapping[str, str] | None = field(default=None, repr=False)


def take(agent: Connection, order: Order, timeout_s: float) -> list[tuple[int, str]]:
    """Take a node; generation and address of each of its workers, which no other client has used.

    What the agent has said before its answer was for the client before, and is dropped.

    Raises:
        NodeInUseError: another client has it.
        WireError: it ends, or does not answer in time.
    """
    about = {"compute_pool": order.document, "lease_s": order.lease_s, "environment": order.environment}
    agent.post(Frame(Kind.TAKE, 0, encode(about)))
    late = threading.Timer(timeout_s, agent.stop_reading)
    late.daemon = True
    late.start()
    try:
        while frames := agent.receive():
            for frame in frames:
                if frame.kind == Kind.TAKEN:
                    answer = decode(frame.head)
                    if "refused" in answer:
                        raise NodeInUseError(f"It cannot be taken over: {answer['refused']}.")
                    return [(int(generation), str(address)) for generation, address in answer["workers"]]
    finally:
        late.cancel()
    raise WireError(f"Its agent did not give it to this client: it ended, or took longer than {timeout_s:g} s.")


def keeping(keep_s: float, grace_s: float) -> Frame:
    """The message by which a client gives a node back."""
    return Frame(Kind.KEEP, 0, encode({"keep_s": keep_s, "grace_s": grace_s}))
