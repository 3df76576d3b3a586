"""What a pool of this process has in a swarm: its service, where its tasks are, and who inherits them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skyward.engine.limits import shm_bytes
from skyward.errors import PoolClosedError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.model.rights import Rights
from skyward.providers.base import Launch, Terms
from skyward.providers.containers import user_of
from skyward.providers.heir import Heir
from skyward.providers.owner import Owner
from skyward.providers.rundir import PoolDirectory
from skyward.providers.swarm import checks, estate
from skyward.providers.swarm.api import Document
from skyward.providers.swarm.certificates import identities
from skyward.providers.swarm.manager import Manager, ManagerAddress
from skyward.providers.swarm.node import SwarmNode
from skyward.providers.swarm.seats import Seat, Seating, end
from skyward.providers.swarm.service import Wish, labels_of, name_of, secret_text, service_spec
from skyward.runner.station import STOP
from skyward.system import threading

if TYPE_CHECKING:
    from skyward.build.events import Report
    from skyward.providers.registered import Supplied

_GIB = 1024**3


class SwarmPool:
    """What a pool of this process has in a swarm: the way there, its service, and where its tasks are."""

    def __init__(
        self, pool: str, address: ManagerAddress, terms: Terms, rights: Rights, directory: PoolDirectory
    ) -> None:
        self.id, self._address, self._terms, self._directory = pool, address, terms, directory
        self._rights = rights
        self.image: str | None = None  # what the service runs, once it is there
        self._seats: dict[SwarmHost, Seat] = {}
        self._slots: dict[int, int] = {}  # by the number of the host
        self._numbers = itertools.count()
        self._given_up: set[str] = set()  # tasks that are no use any more
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._manager: Manager | None = None
        self._heir: Heir | None = None

    @property
    def manager(self) -> Manager:
        assert self._manager
        return self._manager

    def examine(self, count: int, at_least: int, accelerator: Accelerator | None, registry: str | None) -> int:
        """Connect, and refuse what cannot come about; how many nodes there can be now. Nothing is changed."""
        self._count = count
        self._manager = manager = Manager(self._address, self._directory.path)
        info = manager.api.info()
        checks.check_manager(manager.api.url, info)
        nodes = manager.api.nodes()
        if registry is None and (len(nodes) > 1 or self._address.host):
            raise ProviderError(
                f"The machines of a swarm get images from a registry: give sky.Swarm one that all {len(nodes)} of them "
                "reach, as registry='registry.example.com/team/skyward'."
            )
        usable = checks.usable(nodes, self._terms.platform)
        self._possible, self._gpus = checks.room(usable, count, at_least, self._terms), None
        if accelerator is not None:
            kind, self._possible = checks.gpus(usable, self._possible, at_least, accelerator)
            self._gpus = (kind, accelerator.count)
        self._managers = [str(each["Addr"]) for each in info["Swarm"]["RemoteManagers"]]
        self._shm_bytes = self._shm(usable)
        return self._possible

    def _shm(self, nodes: Sequence[Document]) -> int:
        own = self._terms.memory_gb
        return shm_bytes(int(own * _GIB) if own else min(n["Description"]["Resources"]["MemoryBytes"] for n in nodes))

    def place(self, supplied: Supplied, platform: str, report: Report) -> None:
        """Make secret and service, and wait for the tasks."""
        own, theirs = identities(self.id, self._count)
        api, owner = self.manager.api, Owner.of(os.getpid())
        with self._lock:
            self._check_open()
            estate.sweep(api)
            # before there is anything to inherit
            self._heir = Heir("skyward.providers.swarm.heir", self.id, json.dumps(self._address.document()))
            labels = labels_of(self.id, owner)
            secret = api.create_secret(name_of(self.id), secret_text(theirs), labels)
            wish = Wish(
                pool=self.id,
                nodes=self._count,
                image=supplied.reference,
                platform=platform,
                secret=secret,
                managers=self._managers,
                lease_s=self._terms.lease_s,
                shm_bytes=self._shm_bytes,
                gpus=self._gpus,
                cpus=self._terms.cpus,
                memory_gb=self._terms.memory_gb,
                user=user_of(self._rights, supplied.user),
                privileges=self._rights.privileges,
            )
            api.create_service(service_spec(wish, owner), supplied.auth)
        contexts = {slot: identity.context(server=False) for slot, identity in enumerate(own, 1)}
        self._seating = Seating(self.manager, contexts, self.id, report, self._ended)
        seats = self._seating.take(range(1, self._count + 1), self._possible)
        with self._lock:
            for slot, seat in sorted(seats.items()):
                self._seated(SwarmHost(self, next(self._numbers)), slot, seat)
        self.image = supplied.reference

    def another(self, lost: SwarmHost | None) -> SwarmHost:
        """The next task of a lost one's slot, or one of a slot that had none until now."""
        with self._lock:
            self._check_open()
            if lost is None:
                slots = [slot for slot in range(1, self._count + 1) if slot not in self._slots.values()]
                host = SwarmHost(self, next(self._numbers))
            else:
                slots = [self._slots[lost.number]]
                host = SwarmHost(self, lost.number, lost.turn + 1)
                self._given_up.add(self._seats[lost].task)
        if not slots:
            raise ProviderError(f"The service of pool {self.id} has {self._count} tasks, and all of them are nodes.")
        ((slot, seat),) = self._seating.take(slots, 1, self._given_up).items()
        with self._lock:
            self._seated(host, slot, seat)
        return host

    def _seated(self, host: SwarmHost, slot: int, seat: Seat) -> None:
        self._slots[host.number], self._seats[host] = slot, seat

    def seat(self, host: SwarmHost) -> Seat:
        """The task that a host stands for."""
        return self._seats[host]

    def start(self, host: SwarmHost, launch: Launch) -> SwarmNode:
        with self._lock:
            self._check_open()
            return SwarmNode(self.manager, self._seating, self._seats[host], launch)

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise PoolClosedError(f"Pool {self.id} is ending; no node of it can be started.")

    def close(self) -> None:
        """Remove everything; the heir goes on with what could not be removed."""
        with self._lock:
            self._ended.set()
        with ExitStack() as last:
            last.callback(self._directory.remove)
            if self._manager is None:
                return
            last.callback(self._manager.close)
            for seat in self._seats.values():
                last.callback(seat.session.close)
                end(seat.session, STOP)
            if self._heir is not None:
                self._heir.relieve(self._clear)

    def _clear(self) -> None:
        estate.settle(self.manager.api, self.id)
        estate.clear(self.manager.api, self.id)


@dataclass(frozen=True, slots=True)
class SwarmHost:
    """The machine that a task is on, as the host of one node. Which one is known once the image is prepared.

    Attributes:
        pool: whose it is.
        number: of the host among those of the pool.
        turn: how many tasks its slot has had before.
    """

    pool: SwarmPool
    number: int
    turn: int = 0

    @property
    def name(self) -> str:
        """The machine's name in the swarm."""
        return self.pool.seat(self).machine

    @property
    def address(self) -> str:
        """Its IP address in the swarm."""
        return self.pool.seat(self).address

    def claim_port(self) -> int:
        """A port there that nobody listened at when the task came."""
        return self.pool.seat(self).free_port

    def start(self, launch: Launch) -> SwarmNode:
        """Make the task the node.

        Raises:
            ProviderError: the task has ended.
        """
        return self.pool.start(self, launch)
